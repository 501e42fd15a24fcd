"""Files and folders, in and out."""

import os
import tarfile
from pathlib import Path

import pytest
from sloplet import FileOperationError, TransferError
from sloplet._tar import Unpacker, excluded, pack


@pytest.fixture
def files(sandbox):
    sandbox.exec("rm -rf /app/* /app/.[!.]*")
    return sandbox.filesystem


def test_reading_and_writing_is_exact(files):
    files.write_file("/app/deep/x.txt", "text\nwith ä\n\n")
    assert files.read_file("/app/deep/x.txt") == "text\nwith ä\n\n"
    files.write_file("/app/bin", b"\xff\x00\n", binary=True)
    assert files.read_file("/app/bin", binary=True) == b"\xff\x00\n"
    with pytest.raises(FileOperationError, match="binary=True"):
        files.read_file("/app/bin")
    files.append_file("/app/log/a", "one\n")
    files.append_file("/app/log/a", b"two\n")
    assert files.read_file("/app/log/a") == "one\ntwo\n"
    assert files.read_file("/home/sandbox/app/log/a") == "one\ntwo\n"
    assert files.read_file("/proc/sys/kernel/ostype") == "Linux\n"


def test_looking(files):
    files.write_file("/app/f", "12345", mode="0600")
    files.mkdir("/app/d/e")
    files.append_file("/app/d/g", "")
    found = {one.name: (one.type, one.is_dir) for one in files.list_dir("/app")}
    assert found == {"f": ("file", False), "d": ("directory", True)}
    assert [one.path for one in files.list_dir("/app", depth=2)][-1] == "/app/f"
    assert files.stat("/app/f").permissions == "0600" and files.get_size("/app/f") == 5
    assert files.is_file("/app/f") and not files.is_dir("/app/f") and files.exists("/app/d")
    assert files.is_dir("/app") and files.exists("/app")  # a link to a folder
    assert not files.exists("/app/none") and not files.exists("/app/f/below") and not files.is_file("/app/none")


def test_changing(files):
    files.write_file("/app/a", "x")
    files.copy("/app/a", "/app/b")
    files.move("/app/b", "/app/c")
    files.mkdir("/app/d")
    files.copy("/app/d", "/app/e", recursive=True)
    files.chmod("/app/c", "+x")
    files.chmod("/app/a", 0o640)
    assert (files.stat("/app/c").permissions, files.stat("/app/a").permissions) == ("0755", "0640")
    assert sorted(one.name for one in files.list_dir("/app")) == ["a", "c", "d", "e"]
    files.write_file("/app/d/x", "")
    with pytest.raises(FileOperationError):
        files.rm("/app/d")
    files.rm("/app/d", recursive=True)
    files.rm("/app/d")  # need not be there
    with pytest.raises(FileOperationError):
        files.rm("/app/d", force=False)
    with pytest.raises(FileOperationError, match="No such file"):
        files.copy("/app/none", "/app/x")
    with pytest.raises(FileOperationError):
        files.read_file("/app/none")
    with pytest.raises(FileOperationError):
        files.write_file("/etc/passwd", "")
    files.as_user("root").write_file("/root/x", "mine")
    assert files.as_user("root").read_file("/root/x") == "mine"


def test_large_files_are_streamed_and_counted(files, tmp_path):
    block = os.urandom(1 << 20)
    (tmp_path / "big").write_bytes(block * 24)
    told = []
    files.upload_large(tmp_path / "big", "/app/big", progress_callback=lambda done, total: told.append((done, total)))
    assert told[-1] == (24 << 20, 24 << 20) and len(told) > 24
    files.download_large("/app/big", tmp_path / "back", progress_callback=lambda done, total: told.append((done, total)))
    assert (tmp_path / "back").read_bytes() == block * 24 and told[-1] == (24 << 20, 24 << 20)
    parts = files.stream_file("/app/big", offset=(24 << 20) - 5)
    assert b"".join(parts) == block[-5:]
    assert files.has_spaces
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "script").chmod(0o755)
    files.upload_file(str(tmp_path / "script"), "/app/script")
    assert files.stat("/app/script").permissions == "0755"
    for bad in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileOperationError):
            files.upload_file(bad, "/app/x")
    with pytest.raises(FileOperationError):
        files.download_file("/app/none", tmp_path / "none")
    assert sorted(os.listdir(tmp_path)) == ["back", "big", "script"]


def test_memory_stays_the_same_however_large_a_file_is(files, tmp_path):
    import tracemalloc

    sandbox_file = "/app/sparse"
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 100 << 20)
    tracemalloc.start()
    files.upload_file(tmp_path / "sparse", sandbox_file)
    files.download_file(sandbox_file, tmp_path / "back")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    files.rm(sandbox_file)
    assert (tmp_path / "back").stat().st_size == 100 << 20 and peak < 8 << 20


def tree(folder):
    below = sorted(path for path in Path(folder).rglob("*"))
    kind = lambda path: os.readlink(path) if path.is_symlink() else None if path.is_dir() else path.read_bytes()  # noqa: E731
    return {str(path.relative_to(folder)): kind(path) for path in below}


def project(folder):
    (folder / ".git").mkdir(parents=True)
    (folder / ".git/config").write_text("secret")
    (folder / "pkg/deep").mkdir(parents=True)
    (folder / "pkg/a.py").write_text("print(1)\n")
    (folder / "pkg/a.pyc").write_bytes(b"\0")
    (folder / "pkg/deep" / ("long" * 40)).write_bytes(os.urandom(1000))
    (folder / "pkg/ä").write_text("")
    (folder / "pkg/link").symlink_to("a.py")
    return folder


def test_folders_go_in_and_out_without_what_is_excluded(files, tmp_path):
    source = project(tmp_path / "src")
    told = []
    files.upload_folder(source, "/app/in", exclude=[".git", "*.pyc"], progress=lambda done, total: told.append((done, total)))
    assert told and told[-1][0] >= 1000
    assert not files.exists("/app/in/.git") and not files.exists("/app/in/pkg/a.pyc")
    assert files.download_folder("/app/in", tmp_path / "out") == []
    wanted = {path: content for path, content in tree(source).items() if ".git" not in path and ".pyc" not in path}
    assert tree(tmp_path / "out") == wanted
    files.download_folder("/app/in", tmp_path / "less", ["deep", "link"])
    assert sorted(tree(tmp_path / "less")) == ["pkg", "pkg/a.py", "pkg/ä"]
    with pytest.raises(FileOperationError):
        files.upload_folder(tmp_path / "none", "/app/x")


async def test_folders_with_await(waiting, tmp_path):
    sandbox, source = await waiting(), project(tmp_path / "src")
    await sandbox.filesystem.upload_folder(source, "/app/async", exclude_patterns=[".git"])
    await sandbox.filesystem.download_folder("/app/async", tmp_path / "out", exclude=["pkg/deep"])
    assert "pkg/a.py" in tree(tmp_path / "out") and "pkg/deep" not in tree(tmp_path / "out")
    assert [part async for part in sandbox.filesystem.stream_file("/app/async/pkg/a.py")] == [b"print(1)\n"]


def test_patterns():
    assert excluded("a/b/.git", [".git"]) and excluded("a/x.pyc", ["*.pyc"]) and excluded("docs/x.md", ["docs/*.md"])
    assert excluded("a/node_modules", ["node_modules/"]) and not excluded("a/git", [".git"])


def hostile(*members):
    import io

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size, member.mode = len(content), 0o6755
                tar.addfile(member, io.BytesIO(content))
            else:
                member.linkname = content.decode()
                tar.addfile(member)
    return archive.getvalue()


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a//x"])
def test_an_archive_cannot_name_what_is_elsewhere(tmp_path, name):
    unpacker = Unpacker(tmp_path / "to")
    with pytest.raises(TransferError, match="not below"):
        unpacker.feed(hostile((name, tarfile.REGTYPE, b"x")))
    unpacker.close()
    assert tree(tmp_path) == {"to": None}


def test_nothing_is_written_through_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    to = tmp_path / "to"
    to.mkdir()
    (to / "planted").symlink_to(outside)
    unpacker = Unpacker(to)
    with pytest.raises(FileOperationError, match="in the way"):
        unpacker.feed(hostile(("planted/x", tarfile.REGTYPE, b"x")))
    unpacker.close()
    unpacker = Unpacker(tmp_path / "other")
    archive = hostile(
        ("a", tarfile.SYMTYPE, b"../outside"),
        ("b", tarfile.SYMTYPE, b"/etc"),
        ("a/x", tarfile.REGTYPE, b"x"),
        ("fifo", tarfile.FIFOTYPE, b""),
        ("hard", tarfile.LNKTYPE, b"a/x"),
        ("good", tarfile.SYMTYPE, b"a/x"),
    )
    for byte in range(0, len(archive), 100):
        unpacker.feed(archive[byte : byte + 100])
    unpacker.finish()
    unpacker.close()
    assert sorted(unpacker.left_out) == ["a", "b", "fifo", "hard"] and not list(outside.iterdir())
    assert tree(tmp_path / "other") == {"a": None, "a/x": b"x", "good": "a/x"}
    assert (tmp_path / "other/a/x").stat().st_mode & 0o7777 == 0o755


def test_an_archive_that_breaks_off_leaves_no_half_file(tmp_path):
    source = project(tmp_path / "src")
    (source / "zz").write_bytes(os.urandom(100_000))
    archive = b"".join(pack(source))
    unpacker = Unpacker(tmp_path / "to")
    unpacker.feed(archive[:-60_000])
    with pytest.raises(TransferError, match="broke off"):
        unpacker.finish()
    unpacker.close()
    assert "zz" not in tree(tmp_path / "to") and not [name for name in tree(tmp_path / "to") if ".sloplet" in name]
    with pytest.raises(TransferError, match="no tar"):
        Unpacker(tmp_path / "x").feed(b"nonsense" * 100)


def test_watching(sandbox, files):
    files.mkdir("/app/watched/below")
    seen = []
    for event in files.watch("/app/watched", recursive=True):
        if event.type == "ready":
            sandbox.exec("cd /app/watched; echo x >one; mkdir below/two; rm one")
            continue
        seen.append((event.type, event.path))
        if event == type(event)("remove", "one"):
            break
    assert ("create", "one") in seen and ("create", "below/two") in seen
