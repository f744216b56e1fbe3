"""What unmodified Python clients of the E2B protocol do, synchronous and asyncio. Prints one JSON document."""
import asyncio
import json
import os
import sys
import time

import e2b
from e2b import AsyncSandbox, CommandExitException, NotFoundException, Sandbox, SandboxQuery, SandboxState

seen = {}
options = {"api_key": os.environ["E2B_API_KEY"]}


def wait(what, check):
    for _ in range(1200):
        value = check()
        if value:
            return value
        time.sleep(0.05)
    raise TimeoutError(what)


sandbox = Sandbox.create("host", timeout=600, metadata={"from": "python ü"}, envs={"A": "b"}, **options)
seen["running"] = sandbox.is_running()
result = sandbox.commands.run("echo out $A; echo err >&2")
seen["run"] = [result.exit_code, result.stdout, result.stderr]
try:
    sandbox.commands.run("exit 5")
except CommandExitException as error:
    seen["exit"] = error.exit_code
handle = sandbox.commands.run("while read line; do echo got $line; done; exit 3", background=True, stdin=True, timeout=0)
sandbox.commands.send_stdin(handle.pid, "x\n")
seen["listed"] = any(process.pid == handle.pid for process in sandbox.commands.list())
seen["killed"] = sandbox.commands.kill(handle.pid)
seen["killed_again"] = sandbox.commands.kill(handle.pid + 100_000)
data = bytes(range(256)) * 4000
sandbox.files.write("/data/b", data)
seen["bytes"] = bytes(sandbox.files.read("/data/b", format="bytes")) == data
sandbox.files.write("/data/t", "text ü")
seen["text"] = sandbox.files.read("/data/t")
seen["entries"] = sorted(entry.name for entry in sandbox.files.list("/data"))
seen["made"] = [sandbox.files.make_dir("/data/d"), sandbox.files.make_dir("/data/d")]
seen["exists"] = [sandbox.files.exists("/data/t"), sandbox.files.exists("/data/none")]
try:
    sandbox.files.read("/data/none")
except NotFoundException:
    seen["missing"] = True
watcher = sandbox.files.watch_dir("/data")
sandbox.files.write("/data/new", "x")
events = []


def collect():
    events.extend(event.name for event in watcher.get_new_events())
    return "new" in events


seen["watched"] = wait("an event", collect)
watcher.stop()
screen = []
terminal = sandbox.pty.create(e2b.PtySize(rows=20, cols=60), timeout=60)
sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 4\n")
try:
    terminal.wait(on_pty=lambda part: screen.append(bytes(part)))
except CommandExitException as error:
    seen["terminal"] = [error.exit_code, b"20 60" in b"".join(screen)]
info = sandbox.get_info()
seen["info"] = [info.template_id, info.metadata, info.state == SandboxState.RUNNING]
paginator = Sandbox.list(query=SandboxQuery(metadata={"from": "python ü"}), **options)
seen["found"] = [found.sandbox_id for found in paginator.next_items()] == [sandbox.sandbox_id]
seen["connected"] = Sandbox.connect(sandbox.sandbox_id, **options).commands.run("echo again").stdout
seen["kill"] = [sandbox.kill(), sandbox.kill()]
seen["gone"] = sandbox.is_running()


async def several():
    many = await asyncio.gather(*(AsyncSandbox.create("host", **options) for _ in range(5)))
    results = await asyncio.gather(*(each.commands.run(f"echo {index}") for index, each in enumerate(many)))
    await asyncio.gather(*(each.kill() for each in many))
    return [int(each.stdout) for each in results]


seen["several"] = asyncio.run(several())
json.dump(seen, sys.stdout)
