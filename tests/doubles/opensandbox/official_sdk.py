"""The official client against the real server, with our daemon inside its sandboxes: each step is checked, any failure
ends it. Arguments: the server's address, its key, the image, and `proxy` or `direct`.

The client has no terminals; those are driven by a WebSocket library that is not ours either.
"""

import asyncio
import json
import logging
import sys
import time
from datetime import datetime, timedelta, timezone

import httpx
import websockets
from opensandbox import Sandbox, SandboxManager
from opensandbox.config import ConnectionConfig
from opensandbox.exceptions import SandboxException
from opensandbox.models.execd import ExecutionHandlers, RunCommandOpts
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox.models.sandboxes import SandboxFilter, SnapshotFilter

# What is refused on purpose would be told, too.
logging.disable(logging.CRITICAL)

ADDRESS, KEY, IMAGE, WAY = sys.argv[1:5]
# Another one may drive the same server at the same time.
MADE_BY = f"the-official-client-{WAY}"
CONFIG = dict(
    domain=ADDRESS,
    api_key=KEY,
    use_server_proxy=WAY == "proxy",
    request_timeout=timedelta(seconds=60),
    disable_metrics=True,
)


def same(found, expected, what):
    assert found == expected, f"{what}: {found!r} and not {expected!r}"


async def refused(call, status=None):
    try:
        await call
    except SandboxException as error:
        if status is not None:
            same(getattr(error, "status_code", None), status, f"the status of {error}")
        return error
    raise AssertionError("it was not refused")


async def until(what, ask):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found = await ask()
        if found is not None:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"{what} does not come")


def text(messages):
    return "".join(message.text for message in messages)


async def commands(sandbox):
    run = sandbox.commands.run
    done = await run("echo out; echo err >&2; printf 'a\\n\\nb'; exit 3")
    same((text(done.logs.stdout), text(done.logs.stderr), done.exit_code), ("out\na\n\nb", "err\n", 3), "both streams")
    same((done.error.name, done.error.value, done.complete), ("CommandExecError", "3", None), "how a failure is told")
    done = await run("printf '\\342\\200\\250\\303\\274'")
    same((text(done.logs.stdout), done.exit_code, done.error), ("\u2028\u00fc", 0, None), "text that is not ASCII")
    opts = RunCommandOpts(working_directory="/tmp", envs={"A": "it's $HOME"})
    done = await run('pwd; echo "$A|$FROM_SPEC"', opts=opts)
    same(done.text, "/tmp\nit's $HOME|of the spec", "folder and environment")
    same((await run(["printf", "%s|", "a'b", "$HOME", ""])).text, "a'b|$HOME||", "arguments without a shell")
    same((await run("id -u; id -g", opts=RunCommandOpts(uid=1500, gid=1500))).text, "1500\n1500", "another user")
    same((await run("kill -TERM $$")).error.value, "-1", "a death by a signal")
    started = time.monotonic()
    late = await run("echo before; sleep 60", opts=RunCommandOpts(timeout=timedelta(milliseconds=400)))
    assert time.monotonic() - started < 20, "a limit is not kept"
    same((text(late.logs.stdout), late.exit_code), ("before\n", -1), "a limit")
    missing = await run(["no-such-program"])
    assert missing.exit_code is None and "not found" in missing.error.value, missing
    await refused(run("true", opts=RunCommandOpts(working_directory="/no/such")), 400)

    at = []

    async def note(message):
        at.append((time.monotonic(), message.text))

    await run("echo one; sleep 0.7; echo two", handlers=ExecutionHandlers(on_stdout=note))
    same([message for _, message in at], ["one\n", "two\n"], "what is heard")
    assert at[1][0] - at[0][0] > 0.3, "output is held back until the end"
    many = await run("seq 1 50000")
    same((text(many.logs.stdout).count("\n"), len(text(many.logs.stdout))), (50000, 288894), "50,000 lines")
    await sandbox.commands.set_env("KEPT", "two words")
    await sandbox.commands.set_env("QUOTED", "it's \"so\"\n")
    same((await run('echo "$KEPT|$QUOTED|"')).text, 'two words|it\'s "so"\n|', "variables that are set for later")


async def background(sandbox):
    commands = sandbox.commands
    script = "echo one; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo two >&2; exit 7"
    started = await commands.run(script, opts=RunCommandOpts(background=True))
    status = await commands.get_command_status(started.id)
    same((status.running, status.exit_code, status.content, status.id), (True, None, script, started.id), "it runs")

    async def first():
        logs = await commands.get_background_command_logs(started.id)
        return logs if logs.content else None

    logs = await until("output", first)
    same((logs.content, logs.cursor), ("one\n", 4), "the first output")
    await commands.run("touch /tmp/go")

    async def over():
        status = await commands.get_command_status(started.id)
        return None if status.running else status

    status = await until("the end", over)
    same((status.exit_code, status.error), (7, "exit status 7"), "the end")
    assert status.finished_at >= status.started_at, status
    logs = await commands.get_background_command_logs(started.id, cursor=4)
    same((logs.content, logs.cursor), ("two\n", 8), "what came later")
    endless = await commands.run("sleep 600", opts=RunCommandOpts(background=True))
    await commands.interrupt(endless.id)
    started = endless
    told = (await until("the interruption", over)).error
    assert told in ("signal: terminated", "signal: killed"), told
    await refused(commands.get_command_status("0123456789"), 404)
    await refused(commands.interrupt("0123456789"), 500)


async def sessions(sandbox):
    commands = sandbox.commands
    session = await commands.create_session(working_directory="/tmp/of the session")
    await commands.run_in_session(session, "export X='a b'; cd /; mkdir -p /tmp/it\\'s")
    done = await commands.run_in_session(session, "pwd; echo $X; echo err >&2; exit 4")
    same((done.text, done.exit_code), ("/\na b\nerr", 4), "what a session keeps")
    same((await commands.run_in_session(session, "pwd", working_directory="/tmp/it's")).text, "/tmp/it's", "a folder")
    late = await commands.run_in_session(session, "sleep 60", timeout=timedelta(milliseconds=300))
    same(late.exit_code, -1, "a limit in a session")
    await commands.delete_session(session)
    await refused(commands.delete_session(session), 404)
    await refused(commands.run_in_session(session, "true"))


async def files(sandbox):
    files, run = sandbox.files, sandbox.commands.run
    every = bytes(range(256)) * 1000
    await files.write_files(
        [
            WriteEntry(path="/work/a b/\u00fc.bin", data=every, mode=640),
            # Called as a part of a form is.
            WriteEntry(path="/work/metadata", data="one\ntwo\nthree\n", mode=600, owner="worker", group="worker"),
        ]
    )
    assert await files.read_bytes("/work/a b/\u00fc.bin") == every, "bytes"
    same(await files.read_bytes("/work/a b/\u00fc.bin", range_header="bytes=254-257"), b"\xfe\xff\x00\x01", "a range")
    pieces = [piece async for piece in await files.read_bytes_stream("/work/a b/\u00fc.bin")]
    assert b"".join(pieces) == every, "a stream"
    same(await files.read_file("/work/metadata"), "one\ntwo\nthree\n", "text")
    same(await files.read_file("/work/metadata", offset=2, limit=1), "two\n", "a line")
    await refused(files.read_file("/work/none"), 404)
    info = await files.get_file_info(["/work/metadata", "/work/a b"])
    one = info["/work/metadata"]
    same((one.size, one.mode, one.owner, one.group, one.entry_type), (14, 600, "worker", "worker", "file"), "a file")
    assert abs((one.modified_at - datetime.now(timezone.utc)).total_seconds()) < 60, one
    same((info["/work/a b"].entry_type, len(info)), ("directory", 2), "a folder")
    await refused(files.get_file_info(["/work/metadata", "/work/none"]), 404)
    await run("ln -s metadata /work/link")
    listed = await files.list_directory(DirectoryListEntry(path="/work"))
    found = sorted((entry.path, entry.entry_type) for entry in listed)
    expected = [("/work/a b", "directory"), ("/work/link", "symlink"), ("/work/metadata", "file")]
    same(found, expected, "a list")
    deep = await files.list_directory(DirectoryListEntry(path="/work", depth=2))
    same(len(deep), 4, "a deeper list")
    await refused(files.list_directory(DirectoryListEntry(path="/work/none")), 404)
    for pattern, expected in [("*.bin", ["/work/a b/\u00fc.bin"]), ("m?t[a-c]*", ["/work/metadata"]), ("no*", [])]:
        found = await files.search(SearchEntry(path="/work", pattern=pattern))
        same([entry.path for entry in found], expected, f"what is called {pattern}")
    everything = await files.search(SearchEntry(path="/work", pattern="**"))
    assert "/work/a b/\u00fc.bin" in [entry.path for entry in everything], everything
    entry = ContentReplaceEntry(path="/work/metadata", old_content="o", new_content="[o]")
    done = await files.replace_contents_detailed([entry])
    same([(one.path, one.replaced_count) for one in done], [("/work/metadata", 2)], "how often it was replaced")
    same(await files.read_file("/work/metadata"), "[o]ne\ntw[o]\nthree\n", "what was replaced")
    await files.replace_contents([ContentReplaceEntry(path="/work/metadata", old_content="[o]", new_content="0")])
    same(await files.read_file("/work/metadata"), "0ne\ntw0\nthree\n", "and again")
    await files.set_permissions([SetPermissionEntry(path="/work/metadata", mode=751, owner="worker", group="root")])
    one = (await files.get_file_info(["/work/metadata"]))["/work/metadata"]
    same((one.mode, one.owner, one.group), (751, "worker", "root"), "rights")
    await files.create_directories([WriteEntry(path="/work/new/deep", mode=711, owner="worker", group="worker")])
    same((await run("stat -c '%a %U' /work/new/deep")).text, "711 worker", "a new folder")
    await files.move_files([MoveEntry(src="/work/metadata", dest="/work/new/moved")])
    await refused(files.get_file_info(["/work/metadata"]), 404)
    await refused(files.move_files([MoveEntry(src="/work/link", dest="/work/new/moved")]), 500)
    await files.delete_files(["/work/new/moved", "/work/none"])
    await refused(files.delete_files(["/work/new"]), 500)
    await files.delete_directories(["/work/new", "/work/none"])
    same(sorted(entry.path for entry in await files.list_directory(DirectoryListEntry(path="/work"))),
         ["/work/a b", "/work/link"], "what is left")


async def endpoint(sandbox):
    served = "mkdir -p /www; echo hello >/www/f; httpd -f -p 8000 -h /www"
    await sandbox.commands.run(served, opts=RunCommandOpts(background=True))
    found = await sandbox.get_endpoint(8000)
    async with httpx.AsyncClient(headers=found.build_request_headers(sandbox.connection_config)) as client:

        async def fetch():
            answer = await client.get(f"http://{found.endpoint}/f")
            return answer.text if answer.status_code == 200 else None

        same(await until("the service", fetch), "hello\n", "a service of the sandbox")
    same(("/proxy/8000" in found.endpoint, ADDRESS in found.endpoint), (True, WAY == "proxy"), found.endpoint)


async def terminal(sandbox):
    found = await sandbox.get_endpoint(44772)
    headers = found.build_request_headers(sandbox.connection_config)
    async with httpx.AsyncClient(base_url=f"http://{found.endpoint}", headers=headers) as client:
        made = await client.post("/pty", json={"cwd": "/tmp/of the terminal"})
        same(made.status_code, 201, made.text)
        session = made.json()["session_id"]
        url = f"ws://{found.endpoint}/pty/{session}/ws?pty=1&since="

        async def read(socket, wanted, seen=b""):
            frames = []
            while wanted(seen, frames) is None:
                message = await asyncio.wait_for(socket.recv(), 20)
                if isinstance(message, str):
                    frames.append(json.loads(message))
                else:
                    assert message[0] in (1, 3), message
                    seen += message[9:] if message[0] == 3 else message[1:]
            return seen

        holds = lambda text: lambda seen, _: True if text in seen else None
        told = lambda kind: lambda _, frames: next((one for one in frames if one["type"] == kind), None)
        async with websockets.connect(url + "0", additional_headers=headers) as socket:
            await read(socket, told("connected"))
            await socket.send(json.dumps({"type": "resize", "cols": 97, "rows": 31}))
            await socket.send(json.dumps({"type": "ping"}))
            await read(socket, told("pong"))
            await socket.send(b"\x00" + b"stty size; pwd; echo sum-$((40+2))\n")
            seen = await read(socket, holds(b"sum-42"))
            assert b"31 97" in seen and b"/tmp/of the terminal" in seen, seen
        described = (await client.get(f"/pty/{session}")).json()
        same((described["running"], described["output_offset"] >= len(seen)), (True, True), "a session that was left")
        async with websockets.connect(url + "0&takeover=1", additional_headers=headers) as socket:
            await read(socket, holds(b"sum-42"))
            await socket.send(b"\x00" + b"exit 9\n")
            frames = []
            try:
                while True:
                    message = await asyncio.wait_for(socket.recv(), 20)
                    if isinstance(message, str):
                        frames.append(json.loads(message))
            except websockets.ConnectionClosedOK:
                pass
            same(frames[-1], {"type": "exit", "exit_code": 9}, "the end of a session")
        same((await client.delete(f"/pty/{session}")).status_code, 200, "removing a session")
        same((await client.get(f"/pty/{session}")).status_code, 404, "a session that is gone")


async def life(sandbox, manager):
    before = await sandbox.get_info()
    answer = await sandbox.renew(timedelta(minutes=30))
    left = (answer.expires_at - datetime.now(timezone.utc)).total_seconds()
    assert 1700 < left < 1900 and answer.expires_at > before.expires_at, (before, answer)
    mine = await manager.list_sandbox_infos(SandboxFilter(metadata={"made-by": MADE_BY}))
    same([(one.id, one.status.state) for one in mine.sandbox_infos], [(sandbox.id, "Running")], "a list")
    none = await manager.list_sandbox_infos(SandboxFilter(metadata={"made-by": "nobody"}))
    same(none.sandbox_infos, [], "a list of others")
    await sandbox.patch_metadata({"more": "yes"})
    same((await sandbox.get_info()).metadata["more"], "yes", "a label that was added")
    ticks = await sandbox.commands.run("while :; do sleep 0.1; done", opts=RunCommandOpts(background=True))
    await sandbox.pause()

    async def is_paused():
        return True if (await sandbox.get_info()).status.state == "Paused" else None

    await until("the pause", is_paused)
    await refused(sandbox.pause(), 409)
    resumed = await Sandbox.resume(sandbox.id, connection_config=ConnectionConfig(**CONFIG))
    same((await resumed.commands.get_command_status(ticks.id)).running, True, "a command over a pause")
    same((await resumed.commands.run("echo again")).text, "again", "a command after a pause")
    metrics = await resumed.get_metrics()
    assert metrics.cpu_count >= 1 and 0 <= metrics.cpu_used_percentage <= 100, metrics
    assert 0 < metrics.memory_used_in_mib < metrics.memory_total_in_mib, metrics
    await resumed.close()
    connected = await Sandbox.connect(sandbox.id, connection_config=ConnectionConfig(**CONFIG))
    assert await connected.is_healthy(), "it is not healthy"
    return connected


async def snapshots(sandbox, manager):
    await sandbox.commands.run("echo kept >/root/kept")
    made = await sandbox.create_snapshot(name="of-the-official-client")

    async def is_ready():
        state = (await manager.get_snapshot(made.id)).status.state
        assert state != "Failed", state
        return True if state == "Ready" else None

    await until("the snapshot", is_ready)
    listed = await manager.list_snapshots(SnapshotFilter(sandbox_id=sandbox.id))
    same([(one.id, one.name) for one in listed.snapshot_infos], [(made.id, "of-the-official-client")], "snapshots")
    again = await Sandbox.create(snapshot_id=made.id, connection_config=ConnectionConfig(**CONFIG))
    same((await again.commands.run("cat /root/kept")).text, "kept", "a sandbox of a snapshot")
    await again.destroy()
    await manager.delete_snapshot(made.id)
    await refused(manager.get_snapshot(made.id), 404)


async def main():
    manager = await SandboxManager.create(ConnectionConfig(**CONFIG))
    sandbox = await Sandbox.create(
        IMAGE,
        timeout=timedelta(minutes=10),
        ready_timeout=timedelta(seconds=60),
        env={"FROM_SPEC": "of the spec"},
        metadata={"made-by": MADE_BY},
        resource={"cpu": "500m", "memory": "256Mi"},
        connection_config=ConnectionConfig(**CONFIG),
    )
    try:
        for step in (commands, background, sessions, files, endpoint, terminal):
            await step(sandbox)
            print(step.__name__, "is right", flush=True)
        connected = await life(sandbox, manager)
        if WAY == "proxy":
            await snapshots(connected, manager)
        await connected.close()
    finally:
        await sandbox.destroy()
    await refused(manager.get_sandbox_info(sandbox.id), 404)
    await refused(manager.kill_sandbox(sandbox.id), 404)
    await manager.close()
    print("all good")


asyncio.run(main())
