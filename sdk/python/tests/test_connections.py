"""Connections that break, servers that are not there yet."""

import asyncio
import os
import socket
import subprocess
import sys

import pytest
from sloplet import AsyncClient, AsyncSandbox, Client, Sandbox, ServiceConnectionError, TransferError, _find
from sloplet._sse import Parser


def through(cutter, sandbox):
    return Sandbox.get_from_id(sandbox.id, client=Client(cutter.url))


def test_a_stream_that_breaks_goes_on_where_it_was(sandbox, cutter):
    remote = through(cutter, sandbox)
    cutter.down += [20_000, 70_000, 3_000]
    remote.client = Client(cutter.url)
    remote.processes._client = remote.client
    seen = b"".join(event.raw for event in remote.exec_stream("seq 1 40000; sleep 0.3; seq 40001 60000"))
    assert seen == "".join(f"{n}\n" for n in range(1, 60_001)).encode()
    assert cutter.cut >= 2, "nothing was cut"


async def test_the_same_with_await(sandbox, cutter):
    remote = await AsyncSandbox.get_from_id(sandbox.id, client=AsyncClient(cutter.url))
    process = await remote.start("seq 1 40000", hold="60s")
    await remote.client.aclose()
    remote.client = remote.processes._client = AsyncClient(cutter.url)
    cutter.down += [30_000, 50_000]
    seen = b"".join([event.raw async for event in remote.processes.attach(process.pid).output()])
    assert seen == "".join(f"{n}\n" for n in range(1, 40_001)).encode() and cutter.cut >= 2
    await remote.client.aclose()


def test_a_download_that_breaks_goes_on_where_it_was(sandbox, cutter, tmp_path):
    content = os.urandom(3 << 20)
    sandbox.filesystem.write_file("/app/down", content)
    remote = through(cutter, sandbox)
    remote.filesystem._client = Client(cutter.url)
    cutter.down += [1 << 20, 1 << 20]
    remote.filesystem.download_file("/app/down", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == content and cutter.cut == 2


def test_an_upload_that_breaks_leaves_no_half_file_and_is_tried_again(sandbox, cutter, tmp_path, eventually):
    (tmp_path / "up").write_bytes(os.urandom(3 << 20))
    remote = through(cutter, sandbox)
    sandbox.exec("rm -rf /app/up && mkdir /app/up")
    remote.filesystem._client = Client(cutter.url)
    cutter.up += [1 << 20] * 4
    with pytest.raises(TransferError, match="nothing half-written"):
        remote.filesystem.upload_file(tmp_path / "up", "/app/up/file")
    assert cutter.cut == 4
    eventually(lambda: sandbox.exec("ls -A /app/up").stdout == "")  # the server hears of it a little later
    cutter.up += [1 << 20]
    remote.filesystem.upload_file(tmp_path / "up", "/app/up/file")
    assert sandbox.filesystem.read_file("/app/up/file", binary=True) == (tmp_path / "up").read_bytes()
    assert cutter.cut == 5


def test_a_folder_whose_download_breaks_leaves_no_half_file(sandbox, cutter, tmp_path):
    sandbox.exec("mkdir -p /app/many; for n in 1 2 3 4; do head -c 300000 /dev/urandom >/app/many/$n; done", check=True)
    remote = through(cutter, sandbox)
    remote.filesystem._client = Client(cutter.url)
    cutter.down += [700_000]
    with pytest.raises(TransferError, match="broke off"):
        remote.filesystem.download_folder("/app/many", tmp_path / "many")
    sizes = [path.stat().st_size for path in (tmp_path / "many").iterdir()]
    assert set(sizes) <= {300_000} and len(sizes) < 4


def test_a_folder_whose_upload_breaks_leaves_no_half_file(sandbox, cutter, tmp_path, eventually):
    for number in range(4):
        (tmp_path / f"{number}").write_bytes(os.urandom(300_000))
    sandbox.exec("rm -rf /app/up")
    remote = through(cutter, sandbox)
    remote.filesystem._client = Client(cutter.url)
    cutter.up += [700_000]
    with pytest.raises(TransferError, match="nothing half-written"):
        remote.filesystem.upload_folder(tmp_path, "/app/up")
    look = "find /app/up -type f -size -300000c -o -type f -size +300000c; find /app/up -name '.*'; ls /app/up | wc -l"
    eventually(lambda: sandbox.exec(look).stdout in ("1\n", "2\n"))  # whole ones, and not all
    assert cutter.cut == 1


def test_output_of_any_length_takes_no_more_memory(sandbox):
    import tracemalloc

    seen = 0
    tracemalloc.start()
    for event in sandbox.exec_stream("yes | head -c 16000000"):
        seen += len(event.raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == 16_000_000 and peak < 8 << 20, peak


DRAFT = """
import sys
from pathlib import Path
from sloplet._draft import whole

with whole(Path("file")) as file:
    file.write(b"half")
    print("half", flush=True)
    sys.stdin.read()
    file.write(b", whole")
"""


def test_a_program_that_is_killed_leaves_no_half_file(tmp_path):
    def begin():
        pipe = subprocess.PIPE
        program = subprocess.Popen([sys.executable, "-c", DRAFT], cwd=tmp_path, stdin=pipe, stdout=pipe, text=True)
        assert program.stdout.readline() == "half\n"
        return program

    killed = begin()
    killed.kill()
    killed.communicate()
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("old")
    left = begin()
    assert (tmp_path / "file").read_text() == "old"
    left.communicate("")
    assert (tmp_path / "file").read_text() == "half, whole" and os.listdir(tmp_path) == ["file"]


def test_events_come_in_any_pieces():
    text = b': keep\n\nevent: stdout\nid: 5\ndata: {"offset":0,"text":"\\u00e4\\n"}\n\nevent: exit\nid: end\ndata: {}\n\n'
    for step in (1, 3, 7, len(text)):
        parser, events = Parser(), []
        for start in range(0, len(text), step):
            events += parser.feed(text[start : start + step])
        assert [(one.name, one.id) for one in events] == [("stdout", "5"), ("exit", "end")]
        assert events[0].json()["text"] == "ä\n"


STARTS = """
import asyncio, sloplet
with sloplet.Sandbox.create() as sandbox:
    print(sandbox.exec("echo sync").stdout, end="")
async def main():
    async with await sloplet.AsyncSandbox.create() as sandbox:
        print((await sandbox.exec("echo async")).stdout, end="")
    print((await sloplet.AsyncClient.default().info())["pid"])
asyncio.run(main())
"""


def test_it_works_with_nothing_running(tmp_path):
    folders = {"SLOPLET_DATA": str(tmp_path / "data"), "SLOPLET_RUN": str(tmp_path / "run")}
    outside = {**os.environ, **folders}
    outside.pop("SLOPLET_URL", None)
    done = subprocess.run([sys.executable, "-c", STARTS], env=outside, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *said, pid = done.stdout.split()
    assert said == ["sync", "async"]
    os.kill(int(pid), 15)
    # Without a binary, and with one that does not work, it says what to do.
    for binary, why in (("/nowhere/sloplet", "SLOPLET_BINARY is '/nowhere/sloplet'"), ("/bin/false", "could not be started")):
        broken = {**outside, "SLOPLET_BINARY": binary, "SLOPLET_RUN": str(tmp_path / "none")}
        done = subprocess.run([sys.executable, "-c", STARTS], env=broken, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and why in done.stderr, done.stderr


def test_a_run_folder_of_somebody_else_gets_nothing(tmp_path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.delenv("SLOPLET_URL", raising=False)
    monkeypatch.setenv("SLOPLET_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SLOPLET_RUN", str(run))
    own = _find.run_folder()
    own.mkdir(mode=0o700, parents=True)
    listener = socket.socket(socket.AF_UNIX)
    door = _find.Door(_find.place(None, None))
    listener.bind(door.address)
    listener.listen()
    listener.setblocking(False)
    cases = (
        (run, 0o777, 0, "can be entered"),
        (run, 0o700, 4321, "belongs to user 4321"),
        (own, 0o755, 0, "can be entered"),
    )
    for folder, mode, owner, why in cases:
        for each in (run, own):
            os.chown(each, 0, 0)
            each.chmod(0o700)
        folder.chmod(mode)
        os.chown(folder, owner, 0)
        with pytest.raises(ServiceConnectionError, match=why):
            Client(api_key="secret").info()
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_client_can_be_used_from_one_loop_after_another(sandbox):
    async def ask():
        return (await (await AsyncSandbox.get_from_id(sandbox.id)).exec("echo again")).stdout

    assert [asyncio.run(ask()) for _ in range(3)] == ["again\n"] * 3
