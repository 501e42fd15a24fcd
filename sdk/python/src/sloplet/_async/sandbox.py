"""A sandbox: made or found, used, saved, deleted."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from .. import _lease, _platform_async as platform
from .._images import PREPARE, SEARCH_PATH, WELL_KNOWN, WORKSPACE
from .._units import Duration, Size, duration, machine, seconds, size
from ..errors import (
    ConflictError,
    FileOperationError,
    HibernationError,
    InvalidRequestError,
    NotFoundError,
    SandboxCreationError,
    SandboxError,
    SandboxNotFoundError,
    SandboxNotReadyError,
    ServiceConnectionError,
    SnapshotRestoreError,
)
from ..types import (
    GIT_TOKEN,
    AuditRecord,
    Budget,
    Command,
    CommandResult,
    Cost,
    ExposedPort,
    FileChange,
    GitCredentials,
    HibernatedSandbox,
    Json,
    NetworkRules,
    NetworkStatus,
    ProcessInfo,
    SandboxInfo,
    SandboxMode,
    SandboxState,
    Secret,
    ServiceConfig,
    SessionInfo,
    SnapshotMetadata,
    SpacesConfig,
    Spent,
    StreamEvent,
    Usage,
)
from .client import AsyncClient, quote
from .filesystem import AsyncFileSystem
from .processes import HOLD, LARGEST_OUTPUT, AsyncProcess, AsyncProcessManager, AsyncSession, AsyncTerminal, run
from .service import AsyncServiceClient
from .snapshots import AsyncSnapshotManager

Infos = list[SandboxInfo]

#: The port that a service is expected on.
SERVICE_PORT = 8080


class AsyncSandbox:
    """A disposable machine. Made by `create`, found again by `get_from_id`; gone with `delete`, or when its time is over."""

    def __init__(self, info: SandboxInfo, client: AsyncClient, *, component: str = "sandbox") -> None:
        self.info = info
        self.client = client
        self.component = component
        self.filesystem = AsyncFileSystem(client, info.id)
        self.processes = AsyncProcessManager(client, info.id)
        self.service = AsyncServiceClient(self)

    def __repr__(self) -> str:
        name = f" {self.info.name!r}" if self.info.name else ""
        return f"<{type(self).__name__}{name} {self.info.id} image={self.info.image!r} {self.info.state}>"

    # --- making and finding

    @classmethod
    async def create(
        cls,
        *,
        image: str | None = None,
        name: str | None = None,
        pool: str | None = None,
        isolation: str | None = None,
        driver: str | None = None,
        memory: Size | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        disk: Size | None = None,
        inodes: int | None = None,
        gpu: str | Iterable[str] | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | None = None,
        hostname: str | None = None,
        mounts: Iterable[Json] | None = None,
        data: Iterable[Json] | None = None,
        volumes: Mapping[str, str] | Iterable[Json] | None = None,
        allow: Iterable[str] | None = None,
        network: NetworkRules | None = None,
        secrets: Iterable[Secret] | None = None,
        budget_usd: float | None = None,
        budget: Budget | None = None,
        metadata: Mapping[str, str] | None = None,
        ttl: Duration | None = "1h",
        on_timeout: str | None = None,
        idle_timeout: Duration | None = None,
        auto_resume: bool | None = None,
        aio: bool | None = None,
        best_effort: bool | None = None,
        client: AsyncClient | None = None,
        url: str | None = None,
        # As the reference has them.
        api_token: str | None = None,
        wait_ready: bool = True,
        timeout: Duration = 600,
        region: str | None = None,
        instance_size: str | None = None,
        mode: SandboxMode | None = None,
        component_type: str | None = None,
        service_config: ServiceConfig | None = None,
        registry: str | None = None,
        spaces_config: SpacesConfig | Mapping[str, str] | None = None,
    ) -> AsyncSandbox:
        """Makes a sandbox. With nothing said it has no network, lives for an hour and starts from the host's own programs.

        `ttl` is how long it lives unless it is deleted before (`None`: until it is deleted); `sandbox.info.ends_at` tells when
        that is. As `with`'s, it is deleted at the end of the block, whatever ends it, also soon after a killed program. `timeout` is how long making it may
        take. `image` is an image's or snapshot's name; `python` and `node` have a folder `/app` that belongs to the user.
        `pool` is a pool of the server's to take it from. `isolation` is how strong the wall is, `driver` which one it is, by
        name. `gpu` is devices of the host by their names in CDI, or `"all"`; `data` is files that are masked on their way in.
        `allow` is what it may reach, `volumes` is like `{"data": "/data"}`. `region`, `registry`, `service_config` and
        `spaces_config` are taken for those who come from the reference, and mean nothing here.
        """
        client = client or AsyncClient.default(url, api_token)
        said: Json = {"timeout": None if ttl is None else duration(ttl)}
        said |= machine(instance_size) if instance_size else {}
        plain = {
            "name": name, "isolation": isolation, "driver": driver, "cpus": cpus, "pids": pids, "inodes": inodes,
            "user": user, "hostname": hostname,
            "workdir": workdir, "on_timeout": on_timeout, "auto_resume": auto_resume, "aio": aio,
            "best_effort": best_effort,
            "memory": None if memory is None else size(memory), "disk": None if disk is None else size(disk),
            "idle_timeout": None if idle_timeout is None else duration(idle_timeout), "image": image, "pool": pool,
        }  # fmt: skip
        said |= {key: value for key, value in plain.items() if value is not None}
        if allow is not None and network is not None:
            raise InvalidRequestError("say what it may reach with allow= or with network=, not with both")
        rules = network or NetworkRules(allow=list(allow or ()))
        if rules != NetworkRules():
            said["network"] = rules.to_json()
        if budget is not None or budget_usd is not None:
            said["budget"] = (budget or Budget(usd=budget_usd)).to_json()
        if isinstance(volumes, Mapping):
            volumes = [{"volume": volume, "path": path} for volume, path in volumes.items()]
        hidden = [one.to_json() for one in secrets or ()]
        devices = [gpu] if isinstance(gpu, str) else gpu
        lists = {"mounts": mounts, "data": data, "volumes": volumes, "secrets": hidden, "gpu": devices}
        said |= {key: list(value) for key, value in lists.items() if value}
        kept = {**(metadata or {})}
        if _is_worker(mode, component_type):
            kept["sloplet.mode"] = SandboxMode.WORKER.value
        said["metadata"], said["env"] = kept, dict(env or {})
        prepared = image in WELL_KNOWN
        if image is not None and image in WELL_KNOWN:
            said["image"] = await _well_known(client, image)
            said.setdefault("workdir", WORKSPACE)
            if said["image"] == "host":
                said["env"].setdefault("PATH", SEARCH_PATH)
        # A request whose answer is lost can be made again without a second sandbox.
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        wait = seconds(timeout)
        try:
            made = await client.ask("POST", "/sandboxes", json=said, headers=headers, timeout=wait, repeatable=True)
        except (NotFoundError, SandboxNotFoundError) as error:
            raise SandboxCreationError(error.message, status=error.status) from error
        except SandboxError:
            raise
        except BaseException:
            # Given up before the answer came: there may be a sandbox that nobody knows.
            await platform.shielded(_unmake(client, said, headers))
            raise
        sandbox = cls(SandboxInfo.of(made), client)
        try:
            if prepared:
                await run(client, sandbox.id, ["sh", "-c", PREPARE], user="root", cwd="/")
            if wait_ready:
                await sandbox.wait_ready(wait)
        except BaseException:
            await sandbox.delete()
            raise
        return sandbox

    @classmethod
    async def get_from_id(
        cls,
        app_id: str,
        component: str = "sandbox",
        api_token: str | None = None,
        spaces_config: SpacesConfig | Mapping[str, str] | None = None,
        *,
        client: AsyncClient | None = None,
        url: str | None = None,
        registry: str | None = None,
    ) -> AsyncSandbox:
        """A sandbox that is there already, by its id or name, whoever made it."""
        client = client or AsyncClient.default(url, api_token)
        found = await client.ask("GET", f"/sandboxes/{quote(app_id)}")
        return cls(SandboxInfo.of(found), client, component=component)

    @classmethod
    async def list(
        cls,
        *,
        state: str | None = None,
        metadata: dict[str, str] | None = None,
        client: AsyncClient | None = None,
    ) -> Infos:
        """All sandboxes, newest first."""
        return await (client or AsyncClient.default()).list_sandboxes(state=state, metadata=metadata)

    # --- what it is

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.id

    @property
    def app_id(self) -> str:
        """Its id, as the reference calls it."""
        return self.info.id

    @property
    def name(self) -> str | None:
        """Its name."""
        return self.info.name

    @property
    def image(self) -> str:
        """What it started from."""
        return self.info.image

    @property
    def mode(self) -> SandboxMode:
        """How it is meant to be used."""
        return SandboxMode(self.info.metadata.get("sloplet.mode", SandboxMode.SERVICE.value))

    @property
    async def state(self) -> SandboxState:
        """Where it is in its life, now."""
        try:
            await self.refresh()
        except SandboxNotFoundError:
            return SandboxState.DELETED
        return self.info.state

    @property
    async def status(self) -> str:
        """The same, as text."""
        state = await self.state
        return state.value

    async def get_status(self) -> str:
        """The same, for those who would rather call."""
        return await self.status

    async def refresh(self) -> SandboxInfo:
        """Asks the server what it knows."""
        return self._know(await self.client.ask("GET", self._path()))

    async def is_ready(self) -> bool:
        """Whether commands can be run in it."""
        return await self.state == SandboxState.RUNNING

    async def wait_ready(self, timeout: Duration = 600, poll_interval: float = 0.2) -> None:
        """Waits until it is ready."""
        ends = time.monotonic() + seconds(timeout)
        while self.info.state != SandboxState.RUNNING:
            if self.info.state in (SandboxState.FAILED, SandboxState.DELETED):
                raise SandboxNotReadyError(f"sandbox {self.id} is {self.info.state}: {self.info.failure or 'it is gone'}")
            if time.monotonic() > ends:
                raise SandboxNotReadyError(f"sandbox {self.id} is still {self.info.state} after {timeout} seconds")
            await platform.sleep(poll_interval)
            await self.refresh()

    async def delete(self) -> None:
        """Kills everything in it and forgets it, also if this is cancelled meanwhile. It need not be there any more."""
        await platform.shielded(_delete(self.client, self._path()))

    async def __aenter__(self) -> AsyncSandbox:
        """Holds it: if this program is killed, it goes two minutes later."""
        try:
            await self.client.ask("PATCH", self._path(), json={"lease": f"{_lease.LEASE:.0f}s"})
            _lease.keeper().hold(self.client.place, self.id)
        except InvalidRequestError:
            pass  # An older server knows no leases.
        except BaseException:
            await self.delete()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.delete()
        finally:
            _lease.keeper().release(self.client.place, self.id)

    # --- commands

    async def exec(
        self,
        command: Command,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: Duration | None = 120,
        *,
        user: str | None = None,
        stdin: str | bytes | None = None,
        output_limit: Size = LARGEST_OUTPUT,
        check: bool = False,
    ) -> CommandResult:
        """Runs a command to its end. With `check`, an error if it does not succeed."""
        done = await run(
            self.client, self.id, command, env=env, cwd=cwd, timeout=timeout, user=user, stdin=stdin, output_limit=output_limit
        )
        return done.check() if check else done

    async def exec_stream(
        self,
        command: Command,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: Duration | None = None,
        *,
        user: str | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Runs a command and tells what it writes while it does; the last event is `exit`.

        However much it writes: it waits for whoever reads. A broken connection is taken up again where it was. A reader
        that stops early ends the command.
        """
        process = await self.processes.start(command, cwd=cwd, env=env, user=user, timeout=timeout, hold=HOLD)
        over = False
        try:
            async for event in process.output():
                over = event.is_complete
                yield event
        finally:
            if not over:
                await platform.shielded(process.kill())

    async def start(self, command: Command, **options: Any) -> AsyncProcess:
        """Starts a process in the background: see `processes.start`."""
        return await self.processes.start(command, **options)

    async def launch_process(self, command: Command, cwd: str | None = None, env: Mapping[str, str] | None = None) -> int:
        """Starts a process in the background; its pid."""
        return await self.processes.launch(command, cwd, env)

    async def list_processes(self, pattern: str | None = None) -> list_of_processes:
        """Processes that run."""
        return await self.processes.list(pattern)

    async def kill_process(self, pid: int) -> bool:
        """Ends a process. `False` if there was none."""
        return await self.processes.kill(pid)

    async def kill_all_processes(self) -> int:
        """Ends all that were started through the API; how many."""
        return await self.processes.kill_all_launched()

    async def pty(self, command: Command = ("/bin/sh", "-i"), **options: Any) -> AsyncTerminal:
        """Starts a terminal: see `processes.terminal`."""
        return await self.processes.terminal(command, **options)

    async def create_session(
        self,
        name: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
    ) -> AsyncSession:
        """Opens a session: its commands find the working directory and the variables that the last one left."""
        said = {"name": name, "cwd": cwd, "user": user, "env": dict(env or {})}
        made = await self.client.ask("POST", self._path("/sessions"), json={k: v for k, v in said.items() if v})
        return AsyncSession(self.client, self.id, made["id"])

    async def get_session(self, name: str) -> AsyncSession:
        """A session that is open, by its name or id."""
        found = await self.client.ask("GET", self._path(f"/sessions/{quote(name)}"))
        return AsyncSession(self.client, self.id, found["id"])

    async def list_sessions(self) -> list_of_sessions:
        """Sessions that are open."""
        return [SessionInfo.of(one) for one in await self.client.ask("GET", self._path("/sessions"))]

    # --- ports

    async def expose_port(self, port: int, *, timeout: Duration = "24h") -> ExposedPort:
        """A link to a port that a browser can open without a key, for so long."""
        said = await self.client.ask("POST", self._path(f"/ports/{port}/link"), json={"timeout": duration(timeout)})
        return ExposedPort(port, said["url"], said["url"].split(":", 1)[0])

    async def ports(self) -> list_of_numbers:
        """Ports that something inside listens on."""
        return [one["port"] for one in await self.client.ask("GET", self._path("/ports"))]

    async def wait_for_port(self, port: int, timeout: Duration = 30) -> ExposedPort:
        """Waits until something listens on a port; a link to it."""
        ends = time.monotonic() + seconds(timeout)
        while port not in await self.ports():
            if time.monotonic() > ends:
                raise SandboxNotReadyError(f"nothing listens on port {port} of sandbox {self.id} after {timeout} seconds")
            await platform.sleep(0.05)
        return await self.expose_port(port)

    async def get_url(self) -> str | None:
        """A link to port 8080; `None` of a worker."""
        return None if self.mode == SandboxMode.WORKER else (await self.expose_port(SERVICE_PORT)).url

    # --- git

    async def git_checkout(
        self,
        url: str,
        path: str = WORKSPACE,
        branch: str | None = None,
        depth: int | None = 1,
        credentials: GitCredentials | str | None = None,
        *,
        timeout: Duration = 600,
    ) -> CommandResult:
        """Clones a repository. Its host must be allowed, unless there are `credentials` for it: a token, or `GitCredentials`.

        They never enter the sandbox. From now on they are put into its requests to that host on their way out: later fetches
        and pushes need nothing either, and whoever is inside can do with that host what they can.
        """
        given = GitCredentials(token=credentials) if isinstance(credentials, str) else credentials
        words = ["git", "clone", "--quiet"]
        words += [*(["--depth", str(depth)] if depth else []), *(["--branch", branch] if branch else [])]
        if given and given.ssh_key:
            raise InvalidRequestError("an SSH key would have to enter the sandbox", hint="use an HTTPS address and a token")
        if given and given.token:
            words += await self._authenticate(url, given.token, given.username)
        return await self.exec([*words, "--", url, path], env={"GIT_TERMINAL_PROMPT": "0"}, timeout=timeout, check=True)

    async def _authenticate(self, url: str, token: str, username: str | None) -> list_of_text:
        """Has the gateway show a token to the host of an address; what `git clone` has to be told for that."""
        where = urlsplit(url)
        if where.scheme != "https" or not where.hostname:
            raise InvalidRequestError("a token is only put into HTTPS", hint="use an address like https://example.com/team/repo")
        if "@" in where.netloc:
            raise InvalidRequestError("what is in the address would be kept inside", hint="leave user and token out of it")
        # Of each host one.
        name = f"{GIT_TOKEN}_{hashlib.sha256(where.netloc.encode()).hexdigest()[:8].upper()}"
        secret = Secret.git(url, token, username, name=name)
        said = await self.client.ask("PUT", self._path("/secrets"), json={"secrets": [secret.to_json()]})
        certificates = said.get("certificates")
        return ["-c", f"http.sslCAInfo={certificates}"] if certificates else []

    # --- what it changed

    async def diff(self, path: str | None = None) -> list_of_changes:
        """What it has changed since it was made, sorted by path: all, or what is in a folder. Not of volumes and mounts."""
        said = await self.client.ask("GET", self._path("/changes"), params={"path": path}, timeout=600)
        if said["truncated"]:
            raise InvalidRequestError("it has changed more files than can be told", hint="name a folder")
        return [FileChange.of(one) for one in said["changes"]]

    async def patch(self, path: str | None = None, *, baseline: str | None = None, user: str | None = None) -> bytes:
        """A patch of what changed in a folder, for `git apply`; of the working folder if none is named.

        In a work tree of git it is what differs from the last commit (`baseline="head"`), elsewhere from the image
        (`baseline="image"`). It is what somebody inside wanted it to be: read it before you apply it.
        """
        asked = {"path": path, "baseline": baseline, "user": user}
        async with self.client.stream("GET", self._path("/patch"), params=asked, timeout=600) as response:
            return await response.aread()

    # --- saving

    async def create_snapshot(
        self,
        snapshot_id: str | None = None,
        paths: Iterable[str] | None = None,
        description: str | None = None,
        tags: Mapping[str, str] | None = None,
        timeout: Duration = 600,
        exclude_patterns: Iterable[str] = (),
        *,
        memory: bool = False,
    ) -> SnapshotMetadata:
        """Saves all its files as an image that others start from: `create(image=snapshot.snapshot_id)`.

        With `memory` its processes are saved, too, where its wall can do that.

        `paths` is what `restore_snapshot` brings back into a sandbox that runs; `/app` if left out. What fits
        `exclude_patterns`, like `["*.log", "build/", "/var/cache"]`, is left out, and the snapshot tells; nothing else is.
        """
        kept = {**(tags or {}), "sloplet.paths": "\n".join(paths or [WORKSPACE])}
        if description is not None:
            kept["sloplet.description"] = description
        said: Json = {"metadata": kept, "exclude": list(exclude_patterns), **({"name": snapshot_id} if snapshot_id else {})}
        said |= {"memory": True} if memory else {}
        made = await self.client.ask("POST", self._path("/snapshot"), json=said, timeout=seconds(timeout))
        return SnapshotMetadata.of(made)

    async def restore_snapshot(self, snapshot_id: str, target_path: str | None = None, timeout: Duration = 600) -> bool:
        """Brings the paths of a snapshot back into this sandbox, each to where it was, or all below `target_path`."""
        saved, wait = await self.snapshots.get(snapshot_id), seconds(timeout)
        source = await type(self).create(image=saved.id, client=self.client, ttl="1h", timeout=timeout)
        try:
            for path in saved.paths or [WORKSPACE]:
                if not await source.filesystem.exists(path):
                    continue
                archive, params = f"/sandboxes/{source.id}/archive", {"path": path}
                async with self.client.stream("GET", archive, params=params, timeout=wait) as response:
                    to = {"path": target_path or path}
                    await self.client.ask("PUT", self._path("/archive"), params=to, body=response.aiter_raw(), timeout=wait)
        except (FileOperationError, InvalidRequestError, ServiceConnectionError) as error:
            raise SnapshotRestoreError(f"{snapshot_id} was not brought back: {error.message}", status=error.status) from error
        finally:
            await source.delete()
        return True

    @property
    def snapshots(self) -> AsyncSnapshotManager:
        """All snapshots."""
        return AsyncSnapshotManager(self.client)

    async def fork(
        self,
        count: int = 1,
        *,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        ttl: Duration | None = None,
    ) -> list_of_sandboxes:
        """Sandboxes that start from this one's files as they are now."""
        said: Json = {"count": count}
        said |= {"name": name} if name else {}
        said |= {"metadata": dict(metadata)} if metadata is not None else {}
        said |= {"timeout": duration(ttl)} if ttl is not None else {}
        made = await self.client.ask("POST", self._path("/fork"), json=said, timeout=600)
        forks = [type(self)(SandboxInfo.of(one), self.client) for one in made["sandboxes"]]
        if made["failures"]:
            for one in forks:
                await one.delete()
            raise SandboxCreationError(f"{len(made['failures'])} of {count} forks could not be made: {made['failures'][0]}")
        return forks

    async def pause(self) -> None:
        """Freezes its processes in place. Its time stands still."""
        self._know(await self.client.ask("POST", self._path("/pause"), timeout=600))

    async def resume(self) -> None:
        """Goes on where a pause or a stop left off."""
        self._know(await self.client.ask("POST", self._path("/resume"), timeout=600))

    async def stop(self) -> None:
        """Saves its files and ends its processes."""
        self._know(await self.client.ask("POST", self._path("/stop"), timeout=600))

    async def hibernate(self) -> HibernatedSandbox:
        """Saves its files, ends its processes and lets it wait until `wake`, for as long as that takes."""
        try:
            await self.set_ttl(None)
            await self.stop()
        except (ConflictError, InvalidRequestError) as error:
            raise HibernationError(error.message, hint=error.hint, status=error.status) from error
        return HibernatedSandbox(self.id, self.image, self.mode, metadata=dict(self.info.metadata))

    @classmethod
    async def wake(
        cls,
        hibernated: HibernatedSandbox,
        pool: object = None,
        *,
        ttl: Duration | None = "1h",
        client: AsyncClient | None = None,
    ) -> AsyncSandbox:
        """Starts a hibernated sandbox again on its files. It is the same one; no pool is needed for that."""
        sandbox = await cls.get_from_id(hibernated.sandbox_id, client=client)
        await sandbox.resume()
        await sandbox.set_ttl(ttl)
        return sandbox

    async def set_ttl(self, ttl: Duration | None) -> None:
        """How long it lives from now on; `None`: until it is deleted."""
        said = {"timeout": None if ttl is None else duration(ttl)}
        self._know(await self.client.ask("PATCH", self._path(), json=said))

    # --- what it may, and what it did

    async def network(self) -> NetworkStatus:
        """What it may reach, and what went through."""
        return NetworkStatus.of(await self.client.ask("GET", self._path("/network")))

    async def set_network(self, rules: NetworkRules) -> NetworkStatus:
        """Replaces what it may reach, at once, for connections that stand, too."""
        return NetworkStatus.of(await self.client.ask("PUT", self._path("/network"), json=rules.to_json()))

    async def allow(self, *hosts: str) -> NetworkStatus:
        """Lets it reach these, too."""
        rules = (await self.network()).rules
        more = [*rules.allow, *(host for host in hosts if host not in rules.allow)]
        return await self.set_network(_changed(rules, allow=more))

    async def deny(self, *hosts: str) -> NetworkStatus:
        """Refuses these, whatever else is said."""
        rules = (await self.network()).rules
        return await self.set_network(_changed(rules, deny=[*rules.deny, *hosts]))

    async def budget(self) -> Spent:
        """What it has used of its budget."""
        return Spent.of(await self.client.ask("GET", self._path("/budget")))

    async def set_budget(self, budget: Budget) -> Spent:
        """Replaces what it may use up. What is spent stays spent."""
        return Spent.of(await self.client.ask("PUT", self._path("/budget"), json=budget.to_json()))

    async def cost(self) -> Cost:
        """What it has cost so far."""
        return await self.client.cost(sandbox=self.id)

    async def usage(self) -> Usage:
        """What it uses right now."""
        return Usage.of(await self.client.ask("GET", self._path("/usage")))

    async def metrics(self) -> list_of_json:
        """What it used over time: a sample every five seconds."""
        said: list_of_json = await self.client.ask("GET", self._path("/metrics"))
        return said

    async def capabilities(self) -> Json:
        """What its wall enforces on this host, and what not."""
        said: Json = await self.client.ask("GET", self._path("/capabilities"))
        return said

    async def audit(self, *, kinds: list_of_text | None = None, since: str | None = None) -> AsyncIterator[AuditRecord]:
        """What it did, from the ledger, oldest first."""
        async for record in self.client.audit(sandbox=self.id, kinds=kinds, since=since):
            yield record

    # --- how

    def _path(self, rest: str = "") -> str:
        return f"/sandboxes/{self.info.id}{rest}"

    def _know(self, said: Json) -> SandboxInfo:
        self.info = SandboxInfo.of(said)
        return self.info

    def _get_service_client(self) -> AsyncServiceClient:
        return self.service


# `list` is a method above.
list_of_changes = list[FileChange]
list_of_json = list[Json]
list_of_numbers = list[int]
list_of_processes = list[ProcessInfo]
list_of_sandboxes = list[AsyncSandbox]
list_of_sessions = list[SessionInfo]
list_of_text = list[str]


def _is_worker(mode: SandboxMode | None, component_type: str | None) -> bool:
    return mode == SandboxMode.WORKER or component_type == "worker"


def _changed(rules: NetworkRules, **changes: Any) -> NetworkRules:
    from dataclasses import replace

    return replace(rules, **changes)


async def _well_known(client: AsyncClient, image: str) -> str:
    """What `python` and `node` mean on this server."""
    stored = {str(one["name"]).removesuffix(":latest") for one in await client.list_images()}
    return next((name for name in WELL_KNOWN[image] if name in stored), "host")


async def _delete(client: AsyncClient, path: str) -> bool:
    """Whether it was there."""
    try:
        await client.ask("DELETE", path)
    except SandboxNotFoundError:
        return False
    except SandboxError:
        raise
    except BaseException:
        # Somebody is in a hurry; it has to go all the same.
        await client.ask("DELETE", path)
        raise
    return True


async def _unmake(client: AsyncClient, said: Json, headers: dict[str, str]) -> bool:
    """Asks once more for the same, which makes nothing new, to learn what to delete."""
    try:
        made = await client.ask("POST", "/sandboxes", json=said, headers=headers, repeatable=True)
        return await _delete(client, f"/sandboxes/{made['id']}")
    except SandboxError:
        return False  # It was not made, or its time will be over.
