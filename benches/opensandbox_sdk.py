"""The official client in a sandbox that is there already: what `bench-opensandbox` is compared with. Arguments: the server's
address, its key, the sandbox's id, `proxy` or `direct`, and how many connections may be kept.

Each line of the input is an order, `exec AT_ONCE COUNT` or `lines COUNT`, and is answered with one line of JSON: the time
of each command, measured around the client's own call, and that of all of them, in seconds. Its event loop is the faster
one that the server's packages bring along.
"""

import asyncio
import json
import logging
import sys
import time

import uvloop
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig

logging.disable(logging.CRITICAL)

ADDRESS, KEY, SANDBOX, WAY, CONNECTIONS = sys.argv[1:6]
CONFIG = ConnectionConfig(domain=ADDRESS, api_key=KEY, use_server_proxy=WAY == "proxy", disable_metrics=True)


def text(execution):
    return "".join(message.text for message in execution.logs.stdout)


async def hello(sandbox):
    begin = time.perf_counter()
    done = await sandbox.commands.run(["/bin/sh", "-c", "echo hi"])
    took = time.perf_counter() - begin
    assert (text(done), done.exit_code) == ("hi\n", 0), done
    return took


async def hellos(sandbox, at_once, count):
    each, left = [], iter(range(count))

    async def lane():
        for _ in left:
            each.append(await hello(sandbox))

    await asyncio.gather(*(lane() for _ in range(at_once)))
    return each


async def lines(sandbox, count):
    begin = time.perf_counter()
    done = await sandbox.commands.run(["seq", str(count)])
    output = text(done)
    took = time.perf_counter() - begin
    assert output.count("\n") == count and done.exit_code == 0, (len(output), done.exit_code)
    return [took]


async def main():
    connections = int(CONNECTIONS)
    # Kept for as long as the other side keeps them: the server closes idle ones before the client's own time for it.
    limits = dict(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=3.0)
    config = CONFIG.with_transport_if_missing(**limits)
    sandbox = await Sandbox.connect(SANDBOX, connection_config=config)
    print(json.dumps("ready"), flush=True)
    while order := sys.stdin.readline().split():
        what, numbers = order[0], [int(number) for number in order[1:]]
        begin = time.perf_counter()
        each = await {"exec": hellos, "lines": lines}[what](sandbox, *numbers)
        print(json.dumps({"each": each, "all": time.perf_counter() - begin}), flush=True)
    await sandbox.close()


uvloop.run(main())
