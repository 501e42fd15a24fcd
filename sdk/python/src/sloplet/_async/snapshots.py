"""Saved sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import NotFoundError
from ..types import SnapshotMetadata
from .client import AsyncClient, quote

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

Found = list[SnapshotMetadata]


class AsyncSnapshotManager:
    """All snapshots of a server that this key may see."""

    def __init__(self, client: AsyncClient | None = None) -> None:
        self._client = client or AsyncClient.default()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client!r})"

    async def create(
        self,
        sandbox: AsyncSandbox,
        snapshot_id: str | None = None,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> SnapshotMetadata:
        """Saves a sandbox, all of it: nothing is left out."""
        return await sandbox.create_snapshot(snapshot_id, description=description, tags=tags)

    async def restore(self, sandbox: AsyncSandbox, snapshot_id: str, target_path: str | None = None) -> None:
        """Brings the paths of a snapshot back into a sandbox."""
        await sandbox.restore_snapshot(snapshot_id, target_path)

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

    async def copy(self, snapshot_id: str, new_id: str) -> SnapshotMetadata:
        """The same under another name."""
        from .sandbox import AsyncSandbox

        saved = await self.get(snapshot_id)
        source = await AsyncSandbox.create(image=saved.id, client=self._client, ttl="1h")
        try:
            return await source.create_snapshot(new_id, saved.paths, saved.description, saved.tags)
        finally:
            await source.delete()

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
