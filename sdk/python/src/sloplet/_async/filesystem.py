"""Files inside a sandbox."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Union, overload

import httpx

from .. import _platform_async as platform, _tar
from .._draft import whole
from .._progress import Meter
from ..errors import FileOperationError, NotFoundError, SandboxNotFoundError, TransferError
from ..types import FileEvent, FileInfo, Json, Progress, ProgressCallback
from . import objects
from .client import BACKOFF, AsyncClient
from .processes import run

#: A path on this machine.
Local = Union[str, "os.PathLike[str]"]

#: Bytes that are appended with one command.
APPENDED = 4 * 1024 * 1024

#: Seconds that a server may think before it answers a transfer.
TRANSFER_TIMEOUT = 600.0


#: Bytes that S3 takes at once; what is larger is streamed to the server.
ONE_PUT = 5 * 1024 * 1024 * 1024


def _hashed(parts: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    for part in parts:
        digest.update(part)
        yield part


class AsyncFileSystem:
    """Files inside a sandbox. Paths are absolute, or relative to the user's home."""

    def __init__(self, client: AsyncClient, sandbox: str, user: str | None = None) -> None:
        self._client, self._sandbox, self._user = client, sandbox, user

    def as_user(self, user: str) -> AsyncFileSystem:
        """The same files, on behalf of somebody else: `root`, say."""
        return type(self)(self._client, self._sandbox, user)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sandbox={self._sandbox!r})"

    # --- reading and writing

    @overload
    async def read_file(self, path: str, binary: Literal[False] = False) -> str: ...
    @overload
    async def read_file(self, path: str, binary: Literal[True]) -> bytes: ...
    @overload
    async def read_file(self, path: str, binary: bool) -> str | bytes: ...

    async def read_file(self, path: str, binary: bool = False) -> str | bytes:
        """A file's content: exactly, as text (UTF-8) or as bytes."""
        content = b"".join([part async for part in self.stream_file(path)])
        if binary:
            return content
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise FileOperationError(f"{path} is not text", hint="read_file(path, binary=True) gives its bytes") from error

    async def stream_file(self, path: str, offset: int = 0) -> AsyncIterator[bytes]:
        """A file's content by and by. A connection that breaks is taken up again where it was."""
        failures, start, size = 0, offset, -1
        while True:
            try:
                params = {**self._at(path), "offset": offset}
                async with self._client.stream("GET", self._path("files"), params=params) as response:
                    length = int(response.headers.get("content-length", -1))
                    if size >= 0 and length >= 0 and offset + length != size:
                        raise TransferError(f"{path} changed while it was read", hint="try again")
                    size = offset + length if length >= 0 else -1
                    async for data in response.aiter_raw():
                        offset, failures = offset + len(data), 0
                        yield data
                return
            except httpx.TransportError as error:
                # What has no size (files of the kernel's) may not be the same when it is read again.
                if failures == len(BACKOFF) or (size < 0 and offset > start):
                    raise TransferError(f"reading {path} broke off after {offset} bytes: {error}", hint="try again") from error
            await platform.sleep(BACKOFF[failures])
            failures += 1

    async def write_file(self, path: str, content: str | bytes, binary: bool = False, *, mode: str | None = None) -> FileInfo:
        """Writes a file as a whole; missing folders are made. `binary` changes nothing: bytes are bytes."""
        body = content.encode() if isinstance(content, str) else bytes(content)
        return FileInfo.of(await self._client.ask("PUT", self._path("files"), params=self._at(path, mode=mode), body=body))

    async def write_stream(self, path: str, parts: Any, *, mode: str | None = None) -> FileInfo:
        """Writes a file from pieces (`bytes`) that come by and by. It appears when the last has come, or not at all."""
        params = self._at(path, mode=mode)
        return FileInfo.of(await self._transfer("PUT", "files", params, parts, f"writing {path}"))

    async def append_file(self, path: str, content: str | bytes) -> None:
        """Adds to the end of a file, which is made if missing."""
        data = content.encode() if isinstance(content, str) else bytes(content)
        for start in range(0, len(data) or 1, APPENDED):
            piece = data[start : start + APPENDED]
            await self._sh('mkdir -p -- "$(dirname -- "$1")" && cat >> "$1"', path, stdin=piece)

    async def upload_file(self, local_path: Local, remote_path: str, *, progress: Progress = False) -> None:
        """Copies a local file in. A broken connection leaves no half file; it is tried again."""
        local = Path(local_path)
        try:
            about = local.stat()
        except OSError as error:
            raise FileOperationError(f"cannot read {local}: {error.strerror}") from error
        if not local.is_file():
            raise FileOperationError(f"{local} is not a file", hint="upload_folder() takes folders")
        meter = Meter(progress, local.name, about.st_size)
        params = self._at(remote_path, mode=f"{about.st_mode & 0o777:04o}")
        failures = 0
        while True:
            try:
                parts = platform.pieces(meter.through(_tar.read(local, about.st_size)))
                entry = FileInfo.of(await self._transfer("PUT", "files", params, parts, f"uploading {local}"))
                break
            except TransferError as error:
                if failures == 3 or not isinstance(error.__cause__, httpx.TransportError):
                    raise
                await platform.sleep(BACKOFF[failures + 1])
                failures += 1
                meter.start_over()
        meter.finish()
        if entry.size != about.st_size:
            raise TransferError(f"{remote_path} has {entry.size} bytes inside, {local} has {about.st_size}")

    async def download_file(self, remote_path: str, local_path: Local, *, progress: Progress = False) -> None:
        """Copies a file out. The local file appears when all has come, or not at all."""
        local = Path(local_path)
        meter = Meter(progress, local.name, (await self.stat(remote_path)).size if progress else 0)
        with whole(local) as file:
            async for data in self.stream_file(remote_path):
                file.write(data)
                meter.add(len(data))
        meter.finish()

    async def upload_large(
        self,
        local_path: Local,
        remote_path: str,
        progress_callback: ProgressCallback | None = None,
        cleanup: bool = True,
        *,
        via_s3: bool | None = None,
    ) -> None:
        """Copies a file of any size in, as a stream. Where the server is elsewhere and has an S3, by way of that: no
        credentials are needed here or inside. With `cleanup` nothing stays there. `via_s3` decides otherwise.
        """
        local = Path(local_path)
        size = local.stat().st_size if local.is_file() else 0
        if size > ONE_PUT or not await self._by_storage(via_s3):
            return await self.upload_file(local_path, remote_path, progress=progress_callback or False)
        place = await objects.presign(self._client, "put")
        meter = Meter(progress_callback or False, local.name, size)
        digest = hashlib.sha256()
        parts = platform.pieces(_hashed(meter.through(_tar.read(local, size)), digest))
        await objects.put(place["url"], parts, size)
        said: Json = {"direction": "in", "path": remote_path, "object": place["object"], "sha256": digest.hexdigest()}
        said |= {"remove": cleanup, **({"user": self._user} if self._user else {})}
        await self._client.ask("POST", self._path("transfers"), json=said, timeout=TRANSFER_TIMEOUT)
        meter.finish()

    async def download_large(
        self,
        remote_path: str,
        local_path: Local,
        progress_callback: ProgressCallback | None = None,
        cleanup: bool = True,
        *,
        via_s3: bool | None = None,
    ) -> None:
        """Copies a file of any size out, in the way of `upload_large`. The local file appears when all has come."""
        if not await self._by_storage(via_s3):
            return await self.download_file(remote_path, local_path, progress=progress_callback or False)
        said: Json = {"direction": "out", "path": remote_path, **({"user": self._user} if self._user else {})}
        sent = await self._client.ask("POST", self._path("transfers"), json=said, timeout=TRANSFER_TIMEOUT)
        local, digest = Path(local_path), hashlib.sha256()
        meter = Meter(progress_callback or False, local.name, sent["bytes"])
        try:
            place = await objects.presign(self._client, "get", sent["object"])
            with whole(local) as file:
                async with objects.get(place["url"]) as response:
                    async for data in response.aiter_raw():
                        file.write(data)
                        digest.update(data)
                        meter.add(len(data))
                if digest.hexdigest() != sent["sha256"]:
                    raise TransferError(f"{remote_path} did not arrive as it was sent", hint="try again")
        finally:
            if cleanup:
                await objects.remove(self._client, sent["object"])
        meter.finish()

    async def _by_storage(self, wanted: bool | None) -> bool:
        """Whether a large file takes the way by S3: not where the server is here, unless somebody says so."""
        if wanted is None:
            return not self._client.place.is_loopback and await objects.has_storage(self._client)
        return wanted

    @property
    def has_spaces(self) -> bool:
        """Whether large files can be moved: always, and without Spaces."""
        return True

    async def upload_folder(
        self,
        local_path: Local,
        remote_path: str,
        exclude_patterns: Iterable[str] = (),
        *,
        exclude: Iterable[str] = (),
        progress: Progress = False,
    ) -> None:
        """Copies a folder's content into a folder inside, as one stream. `exclude` is like `[".git", "*.pyc", "docs/*"]`."""
        local, patterns = Path(local_path), [*exclude_patterns, *exclude]
        if not local.is_dir():
            raise FileOperationError(f"{local} is not a folder")
        meter = Meter(progress, f"{local.name}/", _tar.total(local, patterns) if progress else 0)
        parts = platform.pieces(meter.through(_tar.pack(local, patterns)))
        await self._transfer("PUT", "archive", self._at(remote_path), parts, f"uploading {local}")
        meter.finish()

    async def download_folder(
        self,
        remote_path: str,
        local_path: Local,
        exclude_patterns: Iterable[str] = (),
        *,
        exclude: Iterable[str] = (),
        progress: Progress = False,
    ) -> list[str]:
        """Copies a folder's content out. Each file appears when it is whole; nothing is written through links.

        Returns what was left out: devices and the like, and links that lead out of the folder.
        """
        meter = Meter(progress, f"{remote_path.rstrip('/')}/")
        unpacker = _tar.Unpacker(Path(local_path), [*exclude_patterns, *exclude])
        try:
            params = self._at(remote_path)
            async with self._client.stream("GET", self._path("archive"), params=params, timeout=TRANSFER_TIMEOUT) as response:
                async for data in response.aiter_raw():
                    unpacker.feed(data)
                    meter.add(len(data))
            unpacker.finish()
        except httpx.TransportError as error:
            raise TransferError(f"downloading {remote_path} broke off: {error}", hint="try again") from error
        finally:
            unpacker.close()
        meter.finish()
        return unpacker.left_out

    # --- looking

    async def stat(self, path: str) -> FileInfo:
        """What a path is. A link is not followed."""
        return FileInfo.of(await self._client.ask("GET", self._path("files/stat"), params=self._at(path)))

    async def list_dir(self, path: str = ".", *, depth: int = 1) -> list[FileInfo]:
        """What is in a folder, by path; with `depth`, in those below, too."""
        said = await self._client.ask("GET", self._path("files/list"), params=self._at(path, depth=depth))
        if said["truncated"]:
            raise FileOperationError(f"{path} has more than 10000 entries", hint="list fewer levels, or use download_folder()")
        return [FileInfo.of(one) for one in said["entries"]]

    async def exists(self, path: str) -> bool:
        """Whether something is there."""
        return await self._kind(path) is not None

    async def is_file(self, path: str) -> bool:
        """Whether it is a regular file, or a link to one."""
        kind = await self._kind(path)
        return kind == "file" or kind == "symlink" and await self._test("-f", path)

    async def is_dir(self, path: str) -> bool:
        """Whether it is a folder, or a link to one."""
        kind = await self._kind(path)
        return kind == "directory" or kind == "symlink" and await self._test("-d", path)

    async def get_size(self, path: str) -> int:
        """Bytes of a file."""
        return (await self.stat(path)).size

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncIterator[FileEvent]:
        """Changes in a folder, from now on. The first event is `ready`; after `overflow` some may be missing."""
        params, begun = self._at(path, recursive=recursive), False
        async for event in self._client.events(self._path("files/watch"), params):
            # Nobody watched while the connection was away.
            kind = "overflow" if event.name == "ready" and begun else event.name
            begun = True
            yield FileEvent(kind, str(event.json().get("path", "")))

    # --- changing

    async def mkdir(self, path: str, recursive: bool = True) -> None:
        """Makes a folder."""
        said = {"path": path, "parents": recursive, **({"user": self._user} if self._user else {})}
        await self._client.ask("POST", self._path("files/mkdir"), json=said)

    async def rm(self, path: str, recursive: bool = False, force: bool = True) -> None:
        """Removes a file, or a folder and all that is in it. With `force` it need not be there."""
        try:
            await self._client.ask("DELETE", self._path("files"), params=self._at(path, recursive=recursive))
        except (FileOperationError, NotFoundError) as error:
            if not force or error.status != 404 or isinstance(error, SandboxNotFoundError):
                raise

    async def copy(self, src: str, dst: str, recursive: bool = False) -> None:
        """Copies a file, or a folder."""
        await self._sh(f'cp -P{"a" if recursive else "p"} -- "$1" "$2"', src, dst)

    async def move(self, src: str, dst: str) -> None:
        """Moves a file or folder."""
        said = {"from": src, "to": dst, **({"user": self._user} if self._user else {})}
        await self._client.ask("POST", self._path("files/move"), json=said)

    async def chmod(self, path: str, mode: str | int) -> None:
        """Changes permission bits: `"755"`, `0o755`, or words like `"+x"`."""
        text = f"{mode:04o}" if isinstance(mode, int) else mode
        if not set(text) <= set("01234567") or not 3 <= len(text) <= 4:
            await self._sh('chmod -- "$1" "$2"', text, path)
            return
        said = {"path": path, "mode": text, **({"user": self._user} if self._user else {})}
        await self._client.ask("POST", self._path("files/chmod"), json=said)

    # --- how

    def _path(self, rest: str) -> str:
        return f"/sandboxes/{self._sandbox}/{rest}"

    def _at(self, path: str, **more: object) -> Json:
        return {"path": path, "user": self._user, **more}

    async def _transfer(self, method: str, rest: str, params: Json, parts: Any, what: str) -> Any:
        try:
            return await self._client.ask(
                method, self._path(rest), params=params, body=parts, timeout=TRANSFER_TIMEOUT, repeatable=False
            )
        except Exception as error:
            cause = error.__cause__
            if isinstance(cause, httpx.TransportError):
                raise TransferError(f"{what} broke off: nothing half-written was left", hint="try again") from cause
            raise

    async def _kind(self, path: str) -> str | None:
        try:
            return (await self.stat(path)).type
        except SandboxNotFoundError:
            raise
        except FileOperationError as error:
            if error.status == 404 or "not a directory" in error.message.lower():
                return None
            raise

    async def _test(self, what: str, path: str) -> bool:
        said = await run(self._client, self._sandbox, f"test {what} {shlex.quote(path)}", user=self._user)
        return said.success

    async def _sh(self, script: str, *arguments: str, stdin: bytes | None = None) -> None:
        words = ["sh", "-c", script, "sh", *arguments]
        done = await run(self._client, self._sandbox, words, user=self._user, stdin=stdin, timeout=600)
        if not done.success:
            raise FileOperationError(done.stderr.strip() or f"'{script}' ended with {done.exit_code}")
