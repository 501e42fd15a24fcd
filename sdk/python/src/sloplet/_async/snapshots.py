"""Saved sandboxes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Union

import httpx

from .. import _platform_async as platform, _tar
from .._draft import whole
from .._units import Duration
from ..errors import NotFoundError, TransferError
from ..types import SnapshotMetadata, SpacesConfig
from . import objects
from .client import AsyncClient, quote

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

Found = list[SnapshotMetadata]

#: A path on this machine.
Local = Union[str, "os.PathLike[str]"]


class AsyncSnapshotManager:
    """All snapshots of a server that this key may see."""

    def __init__(self, client: AsyncClient | SpacesConfig | None = None, prefix: str = "") -> None:
        """`SpacesConfig` and `prefix` are taken for those who come from the reference: the server keeps snapshots."""
        self._client = client if isinstance(client, AsyncClient) else AsyncClient.default()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client!r})"

    async def create(
        self,
        sandbox: AsyncSandbox,
        snapshot_id: str | None = None,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        exclude_patterns: Iterable[str] = (),
        paths: Iterable[str] | None = None,
        timeout: Duration = 600,
        *,
        memory: bool = False,
    ) -> SnapshotMetadata:
        """Saves a sandbox, all of it: nothing is left out but what `exclude_patterns` name."""
        return await sandbox.create_snapshot(snapshot_id, paths, description, tags, timeout, exclude_patterns, memory=memory)

    async def restore(
        self, sandbox: AsyncSandbox, snapshot_id: str, target_path: str | None = None, timeout: Duration = 600
    ) -> bool:
        """Brings the paths of a snapshot back into a sandbox."""
        return await sandbox.restore_snapshot(snapshot_id, target_path, timeout)

    async def get(self, snapshot_id: str) -> SnapshotMetadata:
        """One of them, by its name or id."""
        return SnapshotMetadata.of(await self._client.ask("GET", f"/snapshots/{quote(snapshot_id)}"))

    async def exists(self, snapshot_id: str) -> bool:
        """Whether there is such a one."""
        try:
            await self.get(snapshot_id)
        except NotFoundError:
            return False
        return True

    async def delete(self, snapshot_id: str) -> None:
        """Forgets it. Sandboxes made from it are not touched."""
        await self._client.ask("DELETE", f"/snapshots/{quote(snapshot_id)}")

    async def copy(
        self, snapshot_id: str, new_id: str, description: str | None = None, tags: Mapping[str, str] | None = None
    ) -> SnapshotMetadata:
        """The same under another name."""
        from .sandbox import AsyncSandbox

        saved = await self.get(snapshot_id)
        source = await AsyncSandbox.create(image=saved.id, client=self._client, ttl="1h")
        try:
            said = saved.description if description is None else description
            return await source.create_snapshot(new_id, saved.paths, said, saved.tags if tags is None else tags)
        finally:
            await source.delete()

    async def get_download_url(self, snapshot_id: str, expires: Duration = "15m", *, thin: bool = False) -> str:
        """An address from which anybody gets the whole snapshot, for a while; it is put into the server's S3 for that."""
        path, said = f"/snapshots/{quote(snapshot_id)}/export", {"thin": thin}
        sent = await self._client.ask("POST", path, json=said, timeout=objects.TIMEOUT)
        url: str = (await objects.presign(self._client, "get", sent["object"], expires))["url"]
        return url

    async def export_file(
        self, snapshot_id: str, local_path: Local, *, thin: bool = False, files_only: bool = False
    ) -> None:
        """Writes a snapshot as one file that another server takes in. The file appears when it is whole.

        Of one with memory only the files can leave: `files_only` says that this is enough.
        """
        path, params = f"/snapshots/{quote(snapshot_id)}/export", {"thin": thin, "files_only": files_only}
        try:
            with whole(Path(local_path)) as file:
                async with self._client.stream("GET", path, params=params, timeout=objects.TIMEOUT) as response:
                    async for data in response.aiter_raw():
                        file.write(data)
        except httpx.TransportError as error:
            raise TransferError(f"exporting {snapshot_id} broke off: {error}", hint="try again") from error

    async def import_file(self, local_path: Local, snapshot_id: str | None = None) -> SnapshotMetadata:
        """Takes in what `export_file` or `sloplet snapshot export` wrote, under its own name or another."""
        local = Path(local_path)
        parts = platform.pieces(_tar.read(local, local.stat().st_size))
        made = await self._client.ask(
            "POST", "/snapshots", params={"name": snapshot_id}, body=parts, timeout=objects.TIMEOUT
        )
        return SnapshotMetadata.of(made)

    async def list(
        self, prefix: str | None = None, image: str | None = None, tags: Mapping[str, str] | None = None
    ) -> Found:
        """Those whose name begins so, of this image, with all of these tags; newest first."""
        return [
            one
            for one in await self._client.list_snapshots()
            if one.snapshot_id.startswith(prefix or "")
            and image in (None, one.sandbox_image)
            and (tags or {}).items() <= one.tags.items()
        ]

    # --- the same as the reference calls it

    async def create_snapshot(
        self,
        sandbox: AsyncSandbox,
        snapshot_id: str | None = None,
        paths: Iterable[str] | None = None,
        exclude_patterns: Iterable[str] | None = None,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        timeout: Duration = 600,
    ) -> SnapshotMetadata:
        """See `create`."""
        return await self.create(sandbox, snapshot_id, description, tags, exclude_patterns or (), paths, timeout)

    async def restore_snapshot(
        self, sandbox: AsyncSandbox, snapshot_id: str, target_path: str | None = None, timeout: Duration = 600
    ) -> bool:
        """See `restore`."""
        return await self.restore(sandbox, snapshot_id, target_path, timeout)

    async def get_snapshot(self, snapshot_id: str) -> SnapshotMetadata | None:
        """See `get`; `None` if there is no such one."""
        try:
            return await self.get(snapshot_id)
        except NotFoundError:
            return None

    async def list_snapshots(
        self, prefix: str | None = None, image: str | None = None, tags: Mapping[str, str] | None = None
    ) -> Found:
        """See `list`."""
        return await self.list(prefix, image, tags)

    async def delete_snapshot(self, snapshot_id: str) -> bool:
        """See `delete`; `False` if there was no such one."""
        try:
            await self.delete(snapshot_id)
        except NotFoundError:
            return False
        return True

    async def snapshot_exists(self, snapshot_id: str) -> bool:
        """See `exists`."""
        return await self.exists(snapshot_id)

    async def get_snapshot_download_url(self, snapshot_id: str, expires_in: Duration = 3600) -> str:
        """See `get_download_url`."""
        return await self.get_download_url(snapshot_id, expires_in)

    async def copy_snapshot(
        self, source_id: str, target_id: str, description: str | None = None, tags: Mapping[str, str] | None = None
    ) -> SnapshotMetadata:
        """See `copy`."""
        return await self.copy(source_id, target_id, description, tags)
