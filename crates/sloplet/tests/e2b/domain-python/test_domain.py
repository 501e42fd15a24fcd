"""The Python package with E2B_DOMAIN alone, as against E2B's own servers: every name of the domain leads to one server."""

import asyncio
import os
import time

import httpx
import pytest
from e2b import AsyncSandbox, PtySize, Sandbox, Template, Volume


@pytest.fixture(scope="module")
def sandbox():
    made = Sandbox.create(timeout=300)
    yield made
    made.kill()


def eventually(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def test_only_the_domain_is_named(sandbox):
    assert "E2B_API_URL" not in os.environ and "E2B_SANDBOX_URL" not in os.environ
    assert sandbox.get_host(3000) == f"3000-{sandbox.sandbox_id}.{os.environ['E2B_DOMAIN']}"


def test_commands(sandbox):
    lines = []
    result = sandbox.commands.run("echo $A; cat /proc/sys/kernel/random/boot_id", envs={"A": "b"}, on_stdout=lines.append)
    assert result.stdout.startswith("b\n") and "".join(lines) == result.stdout
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.commands.run("id -un").stdout == "user\n"


def test_files_up_and_down(sandbox):
    content = os.urandom(3_000_000)
    sandbox.files.write("/home/user/f", content)
    assert bytes(sandbox.files.read("/home/user/f", format="bytes")) == content
    assert [entry.name for entry in sandbox.files.list("/home/user") if entry.name == "f"] == ["f"]
    assert httpx.get(sandbox.download_url("/home/user/f", use_signature_expiration=60)).content == content
    sent = httpx.post(sandbox.upload_url("/home/user/up", use_signature_expiration=60), files={"file": b"up"})
    assert sent.status_code == 200 and sandbox.files.read("/home/user/up") == "up"


def test_watch(sandbox):
    sandbox.files.make_dir("/home/user/watched")
    watch = sandbox.files.watch_dir("/home/user/watched")
    sandbox.files.write("/home/user/watched/new", "x")
    seen = []
    eventually(lambda: seen.extend(watch.get_new_events()) or any(event.name == "new" for event in seen))
    watch.stop()


def test_pty(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=60)
    sandbox.pty.send_stdin(terminal.pid, b"echo $((40 + 2)); exit\n")
    said = []
    terminal.wait(on_pty=lambda data: said.append(data))
    assert b"42" in b"".join(bytes(data) for data in said)


def test_a_preview_opens_without_a_token(sandbox):
    sandbox.commands.run("echo shown > /home/user/page && python3 -m http.server 3000", background=True, cwd="/home/user")
    address = f"https://{sandbox.get_host(3000)}/page"
    answer = eventually(lambda: (got := httpx.get(address)).status_code == 200 and got)
    assert answer.text == "shown\n"


def test_templates_and_volumes(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    name = f"domain-{os.getpid()}"
    Template.build(Template(file_context_path=str(tmp_path)).from_base_image().copy("a.txt", "a.txt"), name)
    volume = Volume.create(name)
    try:
        volume.write_file("/b", "b")
        made = Sandbox.create(name, timeout=60, volume_mounts={"/mnt/v": volume})
        assert made.commands.run("cat a.txt /mnt/v/b").stdout == "ab"
        made.kill()
    finally:
        Volume.destroy(volume.volume_id)


def test_the_asynchronous_client():
    async def work():
        made = await AsyncSandbox.create(timeout=60)
        try:
            await made.files.write("f", "async")
            watch = await made.files.watch_dir("/home/user", on_event=lambda event: seen.append(event.name))
            assert (await made.commands.run("cat f; touch g")).stdout == "async"
            while "g" not in seen:
                await asyncio.sleep(0.05)
            await watch.stop()
        finally:
            await made.kill()

    seen = []
    asyncio.run(asyncio.wait_for(work(), 60))
