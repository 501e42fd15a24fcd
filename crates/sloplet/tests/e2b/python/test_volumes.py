"""Folders that outlive sandboxes, and their content."""

import io
import os
import uuid

import httpx
import pytest
from e2b import AsyncVolume, NotFoundException, Sandbox, Volume

import api


@pytest.fixture
def volume():
    volume = Volume.create(f"vol-{uuid.uuid4().hex[:8]}")
    yield volume
    Volume.destroy(volume.volume_id)


def test_volumes_are_made_found_and_destroyed():
    name = f"vol-{uuid.uuid4().hex[:8]}"
    volume = Volume.create(name)
    assert (volume.name, Volume.get_info(volume.volume_id).name) == (name, name)
    assert Volume.connect(volume.volume_id).token == volume.token
    assert volume.volume_id in [one.volume_id for one in Volume.list()]
    assert api.call("POST", "/volumes", {"name": name})[0] == 409
    for bad in ["", "a/b", "..", "a b", "x" * 200]:
        assert api.call("POST", "/volumes", {"name": bad})[0] == 400, bad
    assert Volume.destroy(volume.volume_id) is True
    assert Volume.destroy(volume.volume_id) is False
    with pytest.raises(NotFoundException):
        Volume.get_info(volume.volume_id)


def test_files_are_written_read_changed_and_removed(volume):
    entry = volume.write_file("/a.txt", "hello", mode=0o600)
    assert (entry.name, entry.path, entry.size, entry.mode) == ("a.txt", "/a.txt", 5, 0o600)
    assert volume.read_file("a.txt") == "hello"
    assert volume.read_file("/a.txt", format="bytes") == b"hello"
    assert b"".join(volume.read_file("/a.txt", format="stream")) == b"hello"
    with pytest.raises(Exception, match="already exists"):
        volume.write_file("/a.txt", "again")
    volume.write_file("/a.txt", io.BytesIO(b"streamed"), force=True)
    assert volume.read_file("/a.txt") == "streamed"
    assert volume.update_metadata("/a.txt", mode=0o640).mode == 0o640
    assert volume.exists("/a.txt") and not volume.exists("/b.txt")
    volume.remove("/a.txt")
    assert not volume.exists("/a.txt")
    for act in [volume.remove, volume.read_file, volume.get_info]:
        with pytest.raises(NotFoundException):
            act("/a.txt")
    with pytest.raises(NotFoundException):
        volume.write_file("/none/a.txt", "x")


def test_folders_are_made_listed_and_removed(volume):
    with pytest.raises(NotFoundException):
        volume.make_dir("/a/b")
    volume.make_dir("/a/b", force=True)
    volume.write_file("/a/b/c", "")
    assert [one.path for one in volume.list("/")] == ["/a"]
    assert [one.path for one in volume.list("/", depth=3)] == ["/a", "/a/b", "/a/b/c"]
    volume.remove("/a")
    assert volume.list("/") == []


def test_a_large_file_arrives_whole(volume):
    content = os.urandom(20 << 20)
    volume.write_file("/large", io.BytesIO(content))
    assert volume.read_file("/large", format="bytes") == content


def test_content_goes_into_sandboxes_and_back(volume):
    volume.write_file("/in", "from outside")
    sandbox = Sandbox.create(timeout=60, volume_mounts={"/mnt/v": volume})
    try:
        assert sandbox.commands.run("cat /mnt/v/in && echo -n from inside > /mnt/v/out").stdout == "from outside"
        assert volume.read_file("/out") == "from inside"
        assert sandbox.get_info().volume_mounts
        assert api.call("DELETE", f"/volumes/{volume.volume_id}")[0] == 409
    finally:
        sandbox.kill()
    assert volume.read_file("/out") == "from inside"


def test_what_a_sandbox_leaves_leads_nowhere(volume):
    sandbox = Sandbox.create(timeout=60, volume_mounts={"/mnt/v": volume})
    try:
        make = "cd /mnt/v && ln -s /etc/passwd file && ln -s / root && ln -s ../.. up && ln -s /proc/self/root magic"
        sandbox.commands.run(f"{make} && mkfifo pipe")
    finally:
        sandbox.kill()
    for path in ["file", "root/etc/passwd", "up/up/etc/passwd", "magic/etc/passwd", "pipe", "../../../etc/passwd"]:
        with pytest.raises(Exception):
            volume.read_file(path)
    for path in ["root/tmp/x", "up/x", "magic/tmp/x"]:
        with pytest.raises(Exception):
            volume.write_file(path, "x", force=True)
    assert {one.type.value for one in volume.list("/")} == {"symlink", "unknown"}
    volume.write_file("file", "mine", force=True)
    assert volume.read_file("file") == "mine"


def test_the_token_is_needed_and_must_be_the_volumes(volume):
    other = Volume.create(f"vol-{uuid.uuid4().hex[:8]}")
    try:
        url = f"{api.URL}/volumecontent/{volume.volume_id}/dir?path=/"
        for headers in [{}, {"Authorization": f"Bearer {other.token}"}, {"Authorization": "Bearer"}, api.HEADERS]:
            answer = httpx.get(url, headers=headers)
            assert answer.status_code == 401 and answer.json()["code"] == 401
    finally:
        Volume.destroy(other.volume_id)


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("PUT", "/file?path=/a&mode=2541", 400),
        ("PUT", "/file?path=/a&mode=x", 400),
        ("PUT", "/file?path=/", 409),
        ("DELETE", "/path?path=/", 400),
        ("GET", "/dir?path=/&depth=0", 400),
        ("GET", "/path?path=" + "a" * 5000, 400),
        ("GET", "/path?path=%00", 400),
    ],
)
def test_nonsense_is_refused(volume, method, path, status):
    url = f"{api.URL}/volumecontent/{volume.volume_id}{path}"
    answer = httpx.request(method, url, headers={"Authorization": f"Bearer {volume.token}"})
    assert answer.status_code == status, answer.text
    assert answer.json()["code"] == status


@pytest.mark.asyncio
async def test_the_asynchronous_client_does_the_same():
    volume = await AsyncVolume.create(f"vol-{uuid.uuid4().hex[:8]}")
    try:
        await volume.write_file("/a", "x")
        assert await volume.read_file("/a") == "x"
        assert [one.path for one in await volume.list("/")] == ["/a"]
    finally:
        assert await AsyncVolume.destroy(volume.volume_id) is True


def test_owners_are_the_same_from_both_sides(volume):
    entry = volume.write_file("/of-root", "x", uid=0, gid=0, mode=0o600)
    assert (entry.uid, entry.gid) == (0, 0)
    volume.write_file("/mine", "y")
    sandbox = Sandbox.create(timeout=60, volume_mounts={"/mnt/v": volume})
    try:
        look = sandbox.commands.run("stat -c '%n %u:%g %a' of-root mine; cat of-root || true", cwd="/mnt/v")
        assert look.stdout == "of-root 0:0 600\nmine 1000:1000 644\n"
        sandbox.commands.run("echo z > inside; chown 33:44 inside", user="root", cwd="/mnt/v")
        entry = volume.get_info("/inside")
        assert (entry.uid, entry.gid, volume.read_file("/inside")) == (33, 44, "z\n")
        volume.update_metadata("/inside", uid=1000, gid=1000)
        assert sandbox.commands.run("stat -c %U inside", cwd="/mnt/v").stdout == "user\n"
    finally:
        sandbox.kill()
