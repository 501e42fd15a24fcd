"""Requests to a server: the one place where bytes go out and come in."""

from __future__ import annotations

import json as jsonlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from .. import _find, _platform_async as platform
from .._sse import Event, Parser
from ..errors import InvalidRequestError, SandboxError, ServerStartError, ServiceConnectionError, of_status
from ..types import (
    AuditRecord,
    Cost,
    Json,
    LedgerReport,
    SandboxInfo,
    SnapshotMetadata,
    VerifyReport,
    VolumeInfo,
)

#: Seconds for an answer that should come at once.
USUAL_TIMEOUT = 60.0

#: Seconds of silence after which a stream is dead: the server says every 15 that it is still there.
SILENCE = 45.0

#: Seconds between attempts to get a stream back. After the last it is given up.
BACKOFF = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)

#: Asking for these twice is the same as once.
REPEATABLE = ("GET", "HEAD", "PUT", "DELETE")

#: Seconds that a server may take to start.
START_TIMEOUT = 60.0


class AsyncClient:
    """A server. Sandboxes share one unless they are given their own.

    Without arguments it is the server that `SLOPLET_URL` names (with the key in `SLOPLET_API_KEY`), or this user's own, which
    is started if it does not run.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None, *, autostart: bool = True) -> None:
        self.place = _find.place(url, api_key)
        self.autostart = autostart
        headers = {"User-Agent": "sloplet-python"}
        if self.place.key:
            headers["Authorization"] = f"Bearer {self.place.key}"
        # Certificates are read only where there is TLS: that takes longer than making a sandbox.
        tls: ssl.SSLContext | bool = self.place.url.startswith("https:") and ssl.create_default_context()
        near = self.place.is_loopback
        self._door = _find.Door(self.place)
        transport = platform.Transport(uds=self._door.address, verify=tls) if near else None
        self._http = platform.HttpClient(
            base_url=self.place.url, headers=headers, timeout=USUAL_TIMEOUT, transport=transport, verify=tls, trust_env=not near
        )

    @classmethod
    def default(cls, url: str | None = None, api_key: str | None = None) -> AsyncClient:
        """The one that is shared by all who mean the same server."""
        known, place = platform.shared(), _find.place(url, api_key)
        if place not in known:
            known[place] = cls(url, api_key)
        client: AsyncClient = known[place]
        return client

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place.socket or self.place.url!r})"

    # --- asking

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        body: Any = None,
        params: Json | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = USUAL_TIMEOUT,
    ) -> AsyncIterator[httpx.Response]:
        """An answer, its body not yet read; an error if the server refused."""
        wanted = {name: _text(value) for name, value in (params or {}).items() if value is not None}
        content = jsonlib.dumps(json).encode() if json is not None else body
        kind = {"Content-Type": "application/json" if json is not None else "application/octet-stream"}
        limits = httpx.Timeout(timeout, connect=15.0, pool=None, write=max(timeout, USUAL_TIMEOUT))
        request = self._http.build_request(
            method, "/v1" + path, params=wanted or None, content=content, headers={**kind, **(headers or {})}, timeout=limits
        )
        response = await self._send(request)
        try:
            if response.status_code >= 400:
                raise of_status(response.status_code, _message(await response.aread(), response), path)
            yield response
        finally:
            await response.aclose()

    async def _send(self, request: httpx.Request) -> httpx.Response:
        _find.check_private(self.place)
        try:
            return await self._http.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            # Nothing was sent, so it can be sent again.
            if self.place.socket is None or not self.autostart:
                where = self.place.socket or self.place.url
                raise ServiceConnectionError(f"no server answers on {where}: {error}") from error
        await self.start_server()
        _find.check_private(self.place)
        try:
            return await self._http.send(request, stream=True)
        except httpx.ConnectError as error:
            raise ServiceConnectionError(f"no server answers on {self.place.socket}: {error}") from error

    async def start_server(self) -> None:
        """Starts this user's own server if it does not run. The command line does it; so the two find the same one."""
        words = [_find.binary(), "info", "--json"]
        try:
            code, _, errors = await platform.run_program(words, START_TIMEOUT)
        except OSError as error:
            raise ServerStartError(f"cannot execute {words[0]}: {error.strerror}") from error
        if code != 0:
            said = errors.strip().splitlines() or ["it did not say why"]
            raise ServerStartError(f"a server could not be started: {said[-1]}")

    async def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        body: Any = None,
        params: Json | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = USUAL_TIMEOUT,
        repeatable: bool | None = None,
    ) -> Any:
        """What the server says, as JSON. A request that can be repeated is, once, if its connection breaks."""
        again = method in REPEATABLE and (body is None or isinstance(body, bytes)) if repeatable is None else repeatable
        for attempt in (1, 2):
            try:
                ways = {"json": json, "body": body, "params": params, "headers": headers, "timeout": timeout}
                async with self.stream(method, path, **ways) as response:
                    text = await response.aread()
                break
            except httpx.TimeoutException as error:
                raise ServiceConnectionError(f"the server did not answer in time: {method} {path}", hint="try again") from error
            except httpx.TransportError as error:
                if attempt == 2 or not again:
                    broke = f"the connection to the server broke: {error or type(error).__name__}"
                    raise ServiceConnectionError(broke, hint="whether it was carried out is not known") from error
        if not text:
            return None
        try:
            return jsonlib.loads(text)
        except ValueError as error:
            raise ServiceConnectionError("the server's answer is not JSON", hint="is this a sloplet server?") from error

    async def events(self, path: str, params: Json | None = None, *, resumes: bool = True) -> AsyncIterator[Event]:
        """Server-sent events. A stream that breaks is taken up again where it was, if it has numbers to do that by."""
        last, failures = "", 0
        while True:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
            try:
                async with self.stream("GET", path, params=params, headers=headers, timeout=SILENCE) as response:
                    if response.status_code == 204:
                        return
                    parser = Parser()
                    async for data in response.aiter_raw():
                        for event in parser.feed(data):
                            failures, last = 0, event.id or last
                            yield event
                            if event.id == "end":
                                return
                reason = "the server ended the stream"
            except (httpx.TransportError, ServiceConnectionError) as error:
                reason = str(error) or type(error).__name__
            if not resumes:
                return
            if failures == len(BACKOFF):
                raise ServiceConnectionError(f"the stream broke and did not come back: {reason}")
            await platform.sleep(BACKOFF[failures])
            failures += 1

    # --- the server and what it keeps

    async def info(self) -> Json:
        """Version, address, walls and the newest verification."""
        said: Json = await self.ask("GET", "/info")
        return said

    async def list_sandboxes(
        self,
        *,
        state: str | None = None,
        metadata: dict[str, str] | None = None,
        name: str | None = None,
    ) -> list[SandboxInfo]:
        """All sandboxes, newest first."""
        wanted = str(httpx.QueryParams(metadata)) if metadata else None
        params: Json = {"state": state, "metadata": wanted, "name": name, "limit": 1000}
        found: list[SandboxInfo] = []
        while True:
            page = await self.ask("GET", "/sandboxes", params=params)
            found += [SandboxInfo.of(one) for one in page["sandboxes"]]
            if not page.get("next"):
                return found
            params["cursor"] = page["next"]

    async def list_images(self) -> list[Json]:
        """What sandboxes can start from, besides `host` and snapshots."""
        said: list[Json] = await self.ask("GET", "/images")
        return said

    async def list_snapshots(self) -> list[SnapshotMetadata]:
        """Saved sandboxes, newest first."""
        return [SnapshotMetadata.of(one) for one in await self.ask("GET", "/snapshots")]

    async def list_volumes(self) -> list[VolumeInfo]:
        """Folders that outlive sandboxes."""
        return [VolumeInfo.of(one) for one in await self.ask("GET", "/volumes")]

    async def create_volume(self, name: str, size: str | None = None) -> VolumeInfo:
        """Makes an empty volume."""
        said = {"name": name} if size is None else {"name": name, "size": size}
        return VolumeInfo.of(await self.ask("POST", "/volumes", json=said))

    async def delete_volume(self, name: str) -> None:
        """Removes a volume and its content."""
        await self.ask("DELETE", f"/volumes/{quote(name)}")

    # --- what happened

    async def audit(
        self,
        *,
        sandbox: str | None = None,
        kinds: list[str] | None = None,
        since: str | None = None,
        until: str | None = None,
        after: int = 0,
    ) -> AsyncIterator[AuditRecord]:
        """What the ledger holds, oldest first."""
        kind = ",".join(kinds) if kinds else None
        params: Json = {"sandbox": sandbox, "kind": kind, "since": since, "until": until, "after": after, "limit": 1000}
        while True:
            page = await self.ask("GET", "/audit", params=params)
            for record in page["records"]:
                yield AuditRecord.of(record)
            if page["next"] is None:
                return
            params["after"] = page["next"]

    async def follow(self, *, sandbox: str | None = None, kinds: list[str] | None = None) -> AsyncIterator[AuditRecord]:
        """What happens from now on, as it happens."""
        params: Json = {"sandbox": sandbox, "kind": ",".join(kinds) if kinds else None}
        async for event in self.events("/events", params):
            yield AuditRecord.of(event.json())

    async def verify_ledger(self, *, key: str | None = None, head: Json | None = None) -> LedgerReport:
        """Whether anything was removed from the ledger or changed; `key` and `head` are what was kept elsewhere."""
        params: Json = {"key": key, "head": None if head is None else jsonlib.dumps(head)}
        said = await self.ask("GET", "/audit/verify", params=params, timeout=600)
        return LedgerReport(said["sound"], said["problems"], said)

    async def ledger_head(self) -> Json:
        """A signed statement of what the ledger holds: kept elsewhere, it proves later that nothing was changed."""
        said: Json = await self.ask("GET", "/audit/head")
        return said

    async def cost(self, *, sandbox: str | None = None, since: str | None = None) -> Cost:
        """What sandboxes cost, those that are gone included."""
        return Cost.of(await self.ask("GET", "/cost", params={"sandbox": sandbox, "since": since}))

    async def approvals(self) -> list[Json]:
        """Connections that wait for a person."""
        said: list[Json] = (await self.ask("GET", "/approvals"))["approvals"]
        return said

    async def answer(self, approval: int, answer: str) -> None:
        """Answers for one of them: `once`, `always` or `deny`."""
        await self.ask("POST", f"/approvals/{approval}", json={"answer": answer})

    async def verify(
        self, *, image: str | None = None, isolation: str | None = None, probes: list[str] | None = None, timeout: float = 600
    ) -> list[VerifyReport]:
        """Tries to break out of a sandbox on this machine, with the binary's own probes, and tells what came of it."""
        if not self.place.is_loopback:
            raise InvalidRequestError("containment is verified on the server's own machine", hint="run 'sloplet verify' there")
        words = [_find.binary(), "verify", "--json"]
        words += ["--image", image] if image else []
        words += ["--isolation", isolation] if isolation else []
        for probe in probes or []:
            words += ["--probe", probe]
        code, output, errors = await platform.run_program(words, timeout)
        try:
            reports = jsonlib.loads(output)
        except ValueError:
            raise SandboxError(f"'sloplet verify' ended with {code}: {errors.strip() or output.strip()}") from None
        return [_verified(report) for report in reports]


def _verified(report: Json) -> VerifyReport:
    probes = {str(one["probe"]): str(one["verdict"]) for one in report["results"]}
    return VerifyReport("breach" not in probes.values(), str(report["driver"]), probes, report)


def quote(text: str) -> str:
    """Text as a part of a path."""
    from urllib.parse import quote as escape

    return escape(text, safe="")


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _message(body: bytes, response: httpx.Response) -> str:
    try:
        return str(jsonlib.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        host = urlsplit(str(response.url)).netloc
        return f"{host} answered {response.status_code} {response.reason_phrase}: is this a sloplet server?"
