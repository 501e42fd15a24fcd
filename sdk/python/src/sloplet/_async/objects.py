"""Objects in the S3 of a server: what goes there and comes from there directly, by addresses that are good for one object."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from .. import _platform_async as platform
from .._units import Duration, duration
from ..errors import TransferError
from ..types import Json
from .client import AsyncClient

#: Seconds that S3 may think.
TIMEOUT = 600.0


async def has_storage(client: AsyncClient) -> bool:
    """Whether the server has an S3 that this key may use."""
    return bool((await client.ask("GET", "/info")).get("s3"))


async def presign(client: AsyncClient, method: str, uri: str | None = None, expires: Duration = "15m") -> Json:
    """An address for one object, and the object; a new one to write to if none is named."""
    said: Json = {"method": method, "expires": duration(expires), **({"object": uri} if uri else {})}
    answer: Json = await client.ask("POST", "/presign", json=said)
    return answer


async def put(url: str, parts: Any, size: int) -> None:
    """Writes an object. S3 wants to know its size beforehand."""
    async with _request("PUT", url, content=parts, headers={"Content-Length": str(size)}):
        pass


async def remove(client: AsyncClient, uri: str) -> None:
    """Removes an object."""
    async with _request("DELETE", (await presign(client, "delete", uri))["url"]):
        pass


@asynccontextmanager
async def get(url: str) -> AsyncIterator[httpx.Response]:
    """Reads an object."""
    async with _request("GET", url) as response:
        yield response


@asynccontextmanager
async def _request(method: str, url: str, **more: Any) -> AsyncIterator[httpx.Response]:
    # Not by the server's own connection: that would tell S3 the server's key.
    try:
        async with platform.HttpClient(timeout=TIMEOUT) as http, http.stream(method, url, **more) as response:
            if response.status_code >= 300:
                raise TransferError(f"S3 answered {response.status_code}", hint="addresses are good for a while only: try again")
            yield response
    except httpx.TransportError as error:
        raise TransferError(f"the connection to S3 broke off: {error}", hint="try again") from error
