"""The official client of the service against the double: each step is checked, any failure ends it."""

import asyncio
import urllib.error
import urllib.request

from daytona import (
    AsyncDaytona,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaConfig,
    DaytonaError,
    Resources,
    SandboxState,
    SessionExecuteRequest,
)
from daytona.common.pty import PtySize


async def refused(call):
    try:
        await call
    except DaytonaError as error:
        return error
    raise AssertionError("it was not refused")


async def commands(sandbox):
    done = await sandbox.process.exec("echo out; echo err >&2; echo $A$B; exit 3", env={"B": "b"}, timeout=20)
    assert done.exit_code == 3, done
    assert "out" in done.result and "err" in done.result and "ab" in done.result, done
    assert (await sandbox.process.exec("pwd", cwd="/tmp")).result.strip() == "/tmp"
    await refused(sandbox.process.exec("sleep 30", timeout=1))
    await refused(sandbox.process.exec("   "))


async def sessions(sandbox):
    await sandbox.process.create_session("s1")
    await sandbox.process.execute_session_command("s1", SessionExecuteRequest(command="cd /tmp; export X=1"))
    done = await sandbox.process.execute_session_command("s1", SessionExecuteRequest(command="pwd; echo $X; echo e >&2"))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "/tmp\n1\n", "e\n"), done
    started = await sandbox.process.execute_session_command("s1", SessionExecuteRequest(command="exit_code() { return 4; }; exit_code", run_async=True))
    while (await sandbox.process.get_session_command("s1", started.cmd_id)).exit_code is None:
        await asyncio.sleep(0.05)
    assert (await sandbox.process.get_session_command("s1", started.cmd_id)).exit_code == 4
    assert [one.session_id for one in await sandbox.process.list_sessions()] == ["s1"]
    asked = await sandbox.process.execute_session_command(
        "s1", SessionExecuteRequest(command="read L; echo got=$L; echo e2 >&2", run_async=True)
    )
    out, err = [], []
    follow = sandbox.process.get_session_command_logs_async("s1", asked.cmd_id, out.append, err.append)
    await asyncio.gather(follow, sandbox.process.send_session_command_input("s1", asked.cmd_id, "hello"))
    assert ("".join(out), "".join(err)) == ("hello\ngot=hello\n", "e2\n"), (out, err)
    await refused(sandbox.process.send_session_command_input("s1", asked.cmd_id, "late"))
    await sandbox.process.delete_session("s1")
    await refused(sandbox.process.get_session("s1"))


async def files(sandbox):
    await sandbox.fs.upload_file(b"hello \x00\xff", "/work/a b/\u00fc.bin")
    assert await sandbox.fs.download_file("/work/a b/\u00fc.bin") == b"hello \x00\xff"
    await refused(sandbox.fs.download_file("/work/none"))
    await sandbox.fs.create_folder("/work/new", "755")
    info = await sandbox.fs.get_file_info("/work/a b/\u00fc.bin")
    assert info.size == 8 and not info.is_dir, info
    assert sorted(one.name for one in await sandbox.fs.list_files("/work")) == ["a b", "new"]
    await sandbox.fs.move_files("/work/a b/\u00fc.bin", "/work/moved")
    await sandbox.fs.delete_file("/work/moved")
    await refused(sandbox.fs.get_file_info("/work/moved"))
    await refused(sandbox.fs.delete_file("/work/new"))
    await sandbox.fs.delete_file("/work/new", recursive=True)


async def search(sandbox):
    await sandbox.fs.upload_file(b"one\ntwo\n", "/work/s/a.txt")
    await sandbox.fs.set_file_permissions("/work/s/a.txt", mode="600", owner="root", group="root")
    assert (await sandbox.fs.get_file_info("/work/s/a.txt")).permissions == "0600"
    found = await sandbox.fs.find_files("/work/s", "two")
    assert [(one.file, one.line, one.content) for one in found] == [("/work/s/a.txt", 2, "two")], found
    assert (await sandbox.fs.search_files("/work", "*.txt")).files == ["/work/s/a.txt"]
    replaced = await sandbox.fs.replace_in_files(["/work/s/a.txt", "/work/none"], "two", "2")
    assert [one.success for one in replaced] == [True, False], replaced
    assert await sandbox.fs.download_file("/work/s/a.txt") == b"one\n2\n"
    await sandbox.fs.delete_file("/work/s", recursive=True)


def fetch(url, body=None):
    """Without a credential: the address is one."""
    headers = {"Content-Type": "application/octet-stream"}
    with urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers), timeout=30) as answer:
        return answer.read()


async def signed(sandbox):
    await asyncio.to_thread(fetch, await sandbox.upload_url("/work/si gned", 60), b"by address")
    url = await sandbox.download_url("/work/si gned", 60)
    assert await asyncio.to_thread(fetch, url) == b"by address"
    await sandbox.rotate_signing_key()
    try:
        await asyncio.to_thread(fetch, url)
        raise AssertionError("the old key still opens it")
    except urllib.error.HTTPError as error:
        assert error.code == 401, error
    await sandbox.fs.delete_file("/work/si gned")


async def access(sandbox):
    given = await sandbox.create_ssh_access(expires_in_minutes=30)
    assert (await sandbox.validate_ssh_access(given.token)).sandbox_id == sandbox.id
    await sandbox.revoke_ssh_access(given.token)
    assert not (await sandbox.validate_ssh_access(given.token)).valid
    link = await sandbox.create_signed_preview_url(3000, expires_in_seconds=120)
    assert link.token in link.url, link
    await sandbox.expire_signed_preview_url(3000, link.token)


async def life(sandbox):
    await sandbox.resize(Resources(cpu=4, memory=8))
    assert (sandbox.cpu, sandbox.memory) == (4, 8), sandbox
    await refused(sandbox.resize(Resources(disk=20)))
    await sandbox.stop(timeout=30, force=True)
    await sandbox.resize(Resources(disk=20))
    await sandbox.archive()
    while sandbox.state != SandboxState.ARCHIVED:
        await asyncio.sleep(0.05)
        await sandbox.refresh_data()
    await sandbox.start(timeout=30)
    assert (sandbox.state, sandbox.disk) == (SandboxState.STARTED, 20), sandbox


async def terminal(sandbox):
    seen = bytearray()
    handle = await sandbox.process.create_pty_session(
        id="p1", on_data=seen.extend, envs={"E": "v 1"}, pty_size=PtySize(rows=31, cols=97)
    )
    await handle.send_input("stty size; echo $E; exit 7\n")
    ended = await handle.wait()
    assert ended.exit_code == 7, ended
    assert b"31 97" in seen and b"v 1" in seen, bytes(seen)


async def main():
    client = AsyncDaytona(DaytonaConfig())
    sandbox = await client.create(
        CreateSandboxFromImageParams(
            image="debian:12", name="golden", resources=Resources(cpu=2, memory=4, disk=10), env_vars={"A": "a"}
        ),
        timeout=60,
    )
    assert sandbox.state == SandboxState.STARTED, sandbox.state
    assert (await client.get("golden")).id == sandbox.id
    assert (await refused(client.create(CreateSandboxFromSnapshotParams(name="golden")))).status_code == 409
    await commands(sandbox)
    await sessions(sandbox)
    await files(sandbox)
    await search(sandbox)
    await signed(sandbox)
    await access(sandbox)
    link = await sandbox.get_preview_link(3000)
    assert "3000" in link.url and link.token, link
    await terminal(sandbox)
    await sandbox.set_labels({"code-toolbox-language": "python", "k": "v"})
    assert [one.id async for one in client.list()] == [sandbox.id]
    await sandbox.set_autostop_interval(10)
    await life(sandbox)
    await sandbox.stop(timeout=30)
    await refused(sandbox.process.exec("true", timeout=5))
    await sandbox.start(timeout=30)
    assert (await sandbox.process.exec("echo again")).result == "again\n"
    await client.delete(sandbox, timeout=30)
    while True:
        try:
            await client.get("golden")
        except DaytonaError:
            break
        await asyncio.sleep(0.05)
    await client.close()
    print("all good")


asyncio.run(main())
