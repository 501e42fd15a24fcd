"""Folders as tar streams, in constant memory: packed from the local disk, and unpacked onto it.

What is unpacked comes from inside a sandbox and is hostile: names that lead elsewhere are refused, nothing is written
through a link, and only regular files, folders and links that stay within are made.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from .errors import FileOperationError, TransferError

#: Bytes that are read at once.
PIECE = 256 * 1024

BLOCK = 512

#: Longest name.
NAME = 64 * 1024

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def excluded(path: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern means this path, relative to the folder: by its name (`*.pyc`, `.git`) or as a whole (`docs/*.md`)."""
    name = path.rsplit("/", 1)[-1]
    return any(fnmatchcase(name, p.rstrip("/")) or fnmatchcase(path, p.strip("/")) for p in patterns)


def walk(folder: Path, patterns: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a folder that is not excluded, folders before what is in them. Links are not followed."""
    patterns = list(patterns)
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with os.scandir(folder / below) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if excluded(path, patterns):
                continue
            about = entry.stat(follow_symlinks=False)
            yield path, about
            if stat.S_ISDIR(about.st_mode):
                waiting.append(path)


def total(folder: Path, patterns: Iterable[str]) -> int:
    """Bytes of the archive, about."""
    sizes = (about.st_size if stat.S_ISREG(about.st_mode) else 0 for _, about in walk(folder, patterns))
    return sum(BLOCK + -(-size // BLOCK) * BLOCK for size in sizes)


def pack(folder: Path, patterns: Iterable[str] = ()) -> Iterator[bytes]:
    """A folder's content as a tar archive."""
    for path, about in walk(folder, patterns):
        header = tarfile.TarInfo(path)
        header.mode, header.mtime = stat.S_IMODE(about.st_mode), int(about.st_mtime)
        if stat.S_ISDIR(about.st_mode):
            header.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(about.st_mode):
            header.type, header.linkname = tarfile.SYMTYPE, os.readlink(folder / path)
        elif stat.S_ISREG(about.st_mode):
            header.size = about.st_size
        else:
            continue
        yield header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        if header.type == tarfile.REGTYPE:
            yield from read(folder / path, header.size)
            yield bytes(-header.size % BLOCK)
    yield bytes(2 * BLOCK)


def read(path: Path, size: int) -> Iterator[bytes]:
    """So many bytes of a file."""
    with open(path, "rb", buffering=0) as file:
        left = size
        while left:
            data = file.read(min(PIECE, left))
            if not data:
                raise TransferError(f"{path} became shorter while it was sent", hint="try again")
            left -= len(data)
            yield data


class Unpacker:
    """Takes a tar archive in any pieces and makes files below a folder. Each appears when it is whole."""

    def __init__(self, target: Path, patterns: Iterable[str] = ()) -> None:
        target.mkdir(parents=True, exist_ok=True)
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._patterns = list(patterns)
        self._rest = b""
        self._left = 0  # bytes of content that follow
        self._padding = 0
        self._take: Callable[[bytes], None] | None = None
        self._close: Callable[[], None] | None = None
        self._name: str | None = None
        self._link: str | None = None
        self._links: list[tuple[str, str]] = []
        self._abandon: Callable[[], None] | None = None
        self._ended = False
        #: What was left out: devices and the like, and links that lead elsewhere.
        self.left_out: list[str] = []

    def feed(self, data: bytes) -> None:
        """More of it."""
        rest = self._rest + data if self._rest else data
        position = 0
        while not self._ended:
            available = len(rest) - position
            if self._left:
                count = min(self._left, available)
                if self._take and count:
                    self._take(rest[position : position + count])
                position, self._left = position + count, self._left - count
                if self._left:
                    break
            if self._close:
                close, self._close, self._take, self._abandon = self._close, None, None, None
                close()
            if self._padding:
                count = min(self._padding, len(rest) - position)
                position, self._padding = position + count, self._padding - count
                if self._padding:
                    break
            if len(rest) - position < BLOCK:
                break
            self._begin(rest[position : position + BLOCK])
            position += BLOCK
        self._rest = b"" if self._ended else rest[position:]

    def finish(self) -> None:
        """That was all."""
        if not self._ended:
            raise TransferError("the archive broke off: what was not whole is left out", hint="try again")
        for path, target in self._links:
            self._make_link(path, target)

    def close(self) -> None:
        """Removes what is half-written."""
        if self._abandon:
            self._abandon()
            self._abandon = None
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _begin(self, block: bytes) -> None:
        if not any(block):
            self._ended = True
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise TransferError(f"this is no tar archive: {error}") from error
        self._left, self._padding = header.size, -header.size % BLOCK
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            if header.size > NAME:
                raise TransferError("the archive has a name that is too long")
            self._collect(header.type == tarfile.GNUTYPE_LONGNAME)
            return
        path, link = self._name or header.name, self._link or header.linkname
        self._name = self._link = None
        path = path.rstrip("/").removeprefix("./")
        parts = path.split("/")
        if path in ("", "."):
            return
        if any(excluded("/".join(parts[: n + 1]), self._patterns) for n in range(len(parts))):
            return
        if path.startswith("/") or ".." in parts or "" in parts or "\0" in path:
            raise TransferError(f"the archive names '{path!a}', which is not below the folder")
        if header.isdir():
            os.close(self._folder(parts, header.mode))
        elif header.issym():
            self._links.append((path, link))
        elif header.isreg():
            self._file(path, parts, header)
        else:
            self.left_out.append(path)

    def _collect(self, is_name: bool) -> None:
        parts: list[bytes] = []

        def close() -> None:
            text = b"".join(parts).rstrip(b"\0").decode("utf-8", "surrogateescape")
            if is_name:
                self._name = text
            else:
                self._link = text

        self._take, self._close = parts.append, close

    def _folder(self, parts: list[str], mode: int = 0o755) -> int:
        """Opens a folder below, made if missing; nothing on the way may be a link."""
        current = os.dup(self._root)
        for number, part in enumerate(parts, 1):
            try:
                try:
                    below = os.open(part, FOLDER, dir_fd=current)
                except FileNotFoundError:
                    bits = mode & 0o777 | 0o700 if number == len(parts) else 0o755
                    os.mkdir(part, bits, dir_fd=current)
                    below = os.open(part, FOLDER, dir_fd=current)
            except OSError as error:
                why = "a link or a file is in the way" if error.errno in (errno.ELOOP, errno.ENOTDIR) else error.strerror
                raise FileOperationError(f"cannot make the folder '{'/'.join(parts)!a}': {why}") from error
            finally:
                os.close(current)
            current = below
        return current

    def _file(self, path: str, parts: list[str], header: tarfile.TarInfo) -> None:
        folder = self._folder(parts[:-1])
        draft = f".sloplet-{os.getpid()}-{os.urandom(6).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = open(os.open(draft, flags, header.mode & 0o777 | 0o600, dir_fd=folder), "wb", buffering=0)

        def take(data: bytes) -> None:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]

        def close() -> None:
            with file:
                os.utime(file.fileno(), (header.mtime, header.mtime))
            try:
                os.rename(draft, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                os.unlink(draft, dir_fd=folder)
                raise FileOperationError(f"cannot write '{path!a}': {error.strerror}") from error
            finally:
                os.close(folder)

        def abandon() -> None:
            file.close()
            os.unlink(draft, dir_fd=folder)
            os.close(folder)

        self._take, self._close, self._abandon = take, close, abandon

    def _make_link(self, path: str, target: str) -> None:
        below = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if target.startswith("/") or below == ".." or below.startswith("../"):
            self.left_out.append(path)
            return
        parts = path.split("/")
        folder = self._folder(parts[:-1])
        try:
            try:
                os.symlink(target, parts[-1], dir_fd=folder)
            except FileExistsError:
                os.unlink(parts[-1], dir_fd=folder)
                os.symlink(target, parts[-1], dir_fd=folder)
        except OSError as error:
            raise FileOperationError(f"cannot make the link '{path!a}': {error.strerror}") from error
        finally:
            os.close(folder)
