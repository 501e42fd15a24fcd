"""Files: their content, what is known of them, and where they may be."""

import gzip
import hashlib
import io
import urllib.error
import urllib.request

import pytest
from e2b import FileNotFoundException, FileType, InvalidArgumentException
from e2b.exceptions import AuthenticationException, NotEnoughSpaceException, SandboxException
from e2b.sandbox.filesystem.filesystem import WriteEntry

from wire import Wire


def test_write_and_read(sandbox):
    info = sandbox.files.write("new/folder/a.txt", "täxt")
    assert (info.name, info.path, info.type) == ("a.txt", "/home/user/new/folder/a.txt", FileType.FILE)
    assert sandbox.files.read("new/folder/a.txt") == "täxt"
    assert bytes(sandbox.files.read("new/folder/a.txt", format="bytes")) == "täxt".encode()
    assert b"".join(sandbox.files.read("~/new/folder/a.txt", format="stream")) == "täxt".encode()
    sandbox.files.write("new/folder/a.txt", b"")
    assert sandbox.files.read("new/folder/a.txt") == ""
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("new/nothing")
    for folder in ["new", "/"]:
        with pytest.raises(InvalidArgumentException):
            sandbox.files.read(folder)
        with pytest.raises(InvalidArgumentException):
            sandbox.files.write(folder, "x")


@pytest.mark.parametrize("octets", [True, False])
def test_large_files_in_both_forms(sandbox, octets):
    data = hashlib.shake_256(b"seed").digest(9_000_001)
    sandbox.files.write("large", io.BytesIO(data), use_octet_stream=octets)
    assert bytes(sandbox.files.read("large", format="bytes")) == data
    assert sandbox.commands.run("sha256sum large").stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_several_files_at_once(sandbox):
    names = ["several/ä.txt", "/tmp/several two.txt", "several/../three", 'several/qu"ote']
    written = sandbox.files.write_files([WriteEntry(path=name, data=name) for name in names])
    assert [info.path for info in written][:3] == ["/home/user/several/ä.txt", "/tmp/several two.txt", "/home/user/three"]
    assert [sandbox.files.read(name) for name in names[:3]] == names[:3]
    with pytest.raises(InvalidArgumentException):
        sandbox.files.write_files([WriteEntry(path="same", data="1"), WriteEntry(path="same", data="2")])


def test_gzip_both_ways(sandbox, wire):
    text = "again and again " * 100_000
    sandbox.files.write("packed", text, gzip=True)
    assert sandbox.files.read("packed") == text
    assert sandbox.files.read("packed", gzip=True) == text
    query = {"path": "packed"}
    packed = wire.ask("GET", "/files", query=query, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip" and gzip.decompress(packed.body).decode() == text
    assert len(packed.body) < len(text) / 10
    plain = wire.ask("GET", "/files", query=query, headers={"Accept-Encoding": "gzip, deflate"})
    assert "content-encoding" not in plain.headers and plain.body.decode() == text
    octets = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    # Broken ones change nothing.
    for broken in [b"no gzip", gzip.compress(b"x" * 1000)[:-4]]:
        assert wire.ask("POST", "/files", broken, octets, query=query).status == 400
    assert sandbox.files.read("packed") == text
    other = wire.ask("POST", "/files", b"x", {**octets, "Content-Encoding": "br"}, query=query)
    assert other.status == 400 and "br" in other.json()["message"]


def test_a_bomb_meets_the_limit_of_the_disk(own_sandbox):
    # All but 50 MiB is used, so that the bomb need not be large.
    own_sandbox.commands.run("fallocate -l $(( $(df --output=avail -B1 . | tail -1) - (50 << 20) )) filled", timeout=60)
    bomb = gzip.compress(bytes(100 << 20), 9)
    assert len(bomb) < 200_000
    packed = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    answer = Wire(own_sandbox).ask("POST", "/files", bomb, packed, query={"path": "bomb"})
    assert answer.status == 507 and "space" in answer.json()["message"]
    with pytest.raises(NotEnoughSpaceException):
        own_sandbox.files.write("bomb", bytes(60 << 20))
    assert not own_sandbox.files.exists("bomb")
    own_sandbox.files.remove("filled")
    own_sandbox.files.write("small", bytes(60 << 20))


def test_metadata(sandbox, wire):
    info = sandbox.files.write("labelled", "x", metadata={"Author": "somebody", "n": "1 2"})
    assert info.metadata == {"author": "somebody", "n": "1 2"}
    assert sandbox.files.get_info("labelled").metadata == info.metadata
    assert sandbox.files.rename("labelled", "moved").metadata == info.metadata
    sandbox.commands.run("python3 -c \"import os; os.setxattr('moved', 'user.e2b.more', b'y'); os.setxattr('moved', 'user.x', b'y')\"")
    assert sandbox.files.get_info("moved").metadata == {**info.metadata, "more": "y"}
    assert sandbox.files.write("moved", "y").metadata is None
    octets = {"Content-Type": "application/octet-stream"}
    for name, value in [("k" * 247, ""), ("a", "b" * 4100), ("a", "\u00e4")]:
        answer = wire.ask("POST", "/files", b"", {**octets, "X-Metadata-" + name: value}, query={"path": "refused"})
        assert answer.status == 400, (name, value)
    assert not sandbox.files.exists("refused")


def test_what_is_known_of_a_file(sandbox):
    sandbox.commands.run("mkdir -p known && cd known && echo hello > f && chmod 4750 f && ln -sf f link && ln -sf gone broken && mkfifo -m 600 pipe; true")
    info = sandbox.files.get_info("known/f")
    assert (info.size, info.mode, info.permissions, info.owner, info.group) == (6, 0o750, "urwxr-x---", "user", "user")
    assert info.modified_time.year >= 2024 and info.symlink_target is None
    link = sandbox.files.get_info("known/link")
    assert link.type == FileType.SYMLINK and link.symlink_target == "/home/user/known/f"
    assert link.permissions == "Lrwxrwxrwx"
    assert {entry.name for entry in sandbox.files.list("known")} == {"f", "link"}
    assert sandbox.files.get_info("/").path == "/"
    root = sandbox.files.get_info("/etc/passwd")
    assert (root.owner, root.group) == ("root", "root")
    with pytest.raises(SandboxException):
        sandbox.files.read("known/pipe")


def test_listings(sandbox):
    for path in ["tree/b/c/d", "tree/a", "tree/a.b"]:
        sandbox.files.write(path + "/f", "")
    names = lambda depth: [entry.path.removeprefix("/home/user/tree/") for entry in sandbox.files.list("tree", depth=depth)]
    assert names(1) == ["a", "a.b", "b"]
    assert names(2) == ["a", "a/f", "a.b", "a.b/f", "b", "b/c"]
    assert names(9)[-1] == "b/c/d/f"
    sandbox.commands.run("ln -sfn tree by-link")
    assert [entry.path for entry in sandbox.files.list("by-link")][0] == "/home/user/by-link/a"
    with pytest.raises(FileNotFoundException):
        sandbox.files.list("nowhere")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list("tree/a/f")


def test_folders(sandbox):
    assert sandbox.files.make_dir("made/deep/er") is True
    assert sandbox.files.make_dir("made/deep/er") is False
    info = sandbox.files.get_info("made")
    assert (info.type, info.permissions, info.owner) == (FileType.DIR, "drwxr-xr-x", "user")
    sandbox.files.write("made/file", "")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.make_dir("made/file")
    assert sandbox.files.exists("made/deep") and not sandbox.files.exists("made/else")


def test_moving_and_removing(sandbox):
    sandbox.files.write("from/a", "content")
    info = sandbox.files.rename("from/a", "to/new/place")
    assert info.path == "/home/user/to/new/place" and sandbox.files.read("to/new/place") == "content"
    assert not sandbox.files.exists("from/a")
    with pytest.raises(FileNotFoundException):
        sandbox.files.rename("from/a", "to/b")
    sandbox.files.write("to/other", "old")
    sandbox.files.rename("to/new/place", "to/other")
    assert sandbox.files.read("to/other") == "content"
    sandbox.files.remove("to")
    sandbox.files.remove("to")
    assert not sandbox.files.exists("to")


def test_files_of_others(sandbox):
    # As E2B does: files are used with the permission of root, and belong to whom they are made for.
    info = sandbox.files.write("/opt/app/main.py", "x")
    assert sandbox.files.get_info("/opt/app").owner == "user" and info.path == "/opt/app/main.py"
    sandbox.files.write("secret", "x", user="root")
    assert sandbox.files.get_info("/root/secret").owner == "root"
    assert sandbox.files.read("/root/secret") == "x"
    with pytest.raises(AuthenticationException):
        sandbox.files.write("x", "x", user="ghost")
    with pytest.raises(AuthenticationException):
        sandbox.files.get_info("x", user="ghost")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("~root/secret")


def test_what_cannot_be_written_changes_nothing(sandbox):
    sandbox.files.write("kept", "kept")
    with pytest.raises(SandboxException):
        sandbox.files.write("kept/below", "x")
    with pytest.raises(SandboxException):
        sandbox.files.write("/proc/version", "x")
    with pytest.raises(SandboxException):
        sandbox.files.write("n" * 300, "x")
    assert sandbox.files.read("kept") == "kept"
    assert not [entry.name for entry in sandbox.files.list(".") if entry.name.startswith(".sloplet")]


def test_files_without_a_size(sandbox):
    assert sandbox.files.read("/proc/self/status").startswith("Name:")


def test_parts_of_a_file(sandbox, wire):
    sandbox.files.write("digits", "0123456789")
    ask = lambda wish: wire.ask("GET", "/files", query={"path": "digits"}, headers={"Range": wish})
    part = ask("bytes=2-4")
    assert (part.status, part.body, part.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
    assert ask("bytes=-3").body == b"789" and ask("bytes=8-").body == b"89"
    assert ask("bytes=20-").status == 416
    assert ask("bytes=x").status == 200
    head = wire.ask("HEAD", "/files", query={"path": "digits"})
    assert head.status == 200 and head.headers["content-length"] == "10"


def test_signed_addresses(sandbox):
    sandbox.files.write("signed name.txt", "signed")
    open_url = lambda url, data=None, headers={}: urllib.request.urlopen(urllib.request.Request(url, data, headers))
    for url in [
        sandbox.download_url("signed name.txt"),
        sandbox.download_url("signed name.txt", "user"),
        sandbox.download_url("signed name.txt", "user", 60),
    ]:
        assert open_url(url).read() == b"signed"
    octets = {"Content-Type": "application/octet-stream"}
    written = open_url(sandbox.upload_url("up.txt", "user", 60), b"uploaded", octets)
    assert written.status == 200 and sandbox.files.read("up.txt") == "uploaded"
    good = sandbox.download_url("signed name.txt", "user", 60)
    bad = {
        "expired": sandbox.download_url("signed name.txt", "user", use_signature_expiration=-5),
        "other file": good.replace("signed", "other", 1),
        "no signature": good.split("&signature=")[0],
        "put off": good.replace("signature_expiration=", "signature_expiration=9"),
    }
    for why, url in bad.items():
        with pytest.raises(urllib.error.HTTPError) as refused:
            open_url(url)
        assert refused.value.code in (401, 404), why
    # What is signed for reading cannot be written.
    with pytest.raises(urllib.error.HTTPError):
        open_url(good, b"x", octets)
    assert sandbox.files.read("signed name.txt") == "signed"


def test_without_a_token(wire):
    for path, query in [("/files", {"path": "x"}), ("/files", {"path": "x", "signature": "v1_x"}), ("/envs", None)]:
        assert wire.ask("GET", path, token=False, query=query).status == 401, path
    wrong = {"X-Access-Token": "0" * 64}
    assert wire.ask("GET", "/files", headers=wrong, query={"path": "/etc/passwd"}).status == 401
    assert wire.call("filesystem.Filesystem/Stat", {"path": "/"}, wrong).status == 401
    assert wire.ask("GET", "/health", token=False).status == 204


def test_async(in_async):
    async def work(sandbox):
        async def pieces():
            for _ in range(100):
                yield b"x" * 10_000

        await sandbox.files.write("a/b", pieces())
        assert len(await sandbox.files.read("a/b")) == 1_000_000
        assert [entry.name for entry in await sandbox.files.list("a")] == ["b"]
        assert await sandbox.files.make_dir("c") and await sandbox.files.exists("c")
        assert (await sandbox.files.rename("a/b", "c/d")).path == "/home/user/c/d"
        await sandbox.files.remove("c")
        with pytest.raises(FileNotFoundException):
            await sandbox.files.read("c/d")

    in_async(work)
