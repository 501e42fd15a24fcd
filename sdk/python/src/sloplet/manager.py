"""Pools of sandboxes that are ready before they are asked for. The server keeps them; this tells it what to keep."""

from __future__ import annotations

import asyncio
import importlib
import re
import threading
import time
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ._async.client import AsyncClient
from ._async.sandbox import AsyncSandbox, _well_known
from ._images import WELL_KNOWN
from ._sync.client import Client
from ._sync.sandbox import Sandbox
from ._units import duration, machine, size
from .errors import (
    ConflictError,
    NotFoundError,
    PoolExhaustedError,
    PoolShutdownError,
    QuotaError,
    SandboxError,
    WarmUpTimeoutError,
)
from .types import HibernatedSandbox, Json, SpacesConfig

T = TypeVar("T")

#: Seconds after which the server removes pools of a program that was killed, and how often one that lives says so.
LEASE, HEARTBEAT = 120.0, 30.0

#: The longest time that means never.
NEVER = "366d"

#: What a machine is made with; all else of `sandbox_defaults` comes with the claim.
FIXED = ("isolation", "driver", "cpus", "pids", "inodes", "user", "hostname", "best_effort")


@dataclass(frozen=True)
class PoolConfig:
    """How many sandboxes of an image are kept ready. Times are in seconds."""

    max_ready: int = 10
    #: So many are always kept.
    target_ready: int = 0
    #: A pool without acquires for so long is idle: it shrinks to `min_ready`.
    idle_timeout: float = 60
    #: Between two deletions while it shrinks.
    scale_down_delay: float = 60
    #: After an acquire it does not shrink for so long.
    cooldown_after_acquire: float = 120
    #: One that waited for so long is replaced.
    max_warm_age: float = 1800
    #: 0: never, but whoever acquires one asks it anyway.
    health_check_interval: float = 60
    #: When none is ready: make one, or raise `PoolExhaustedError`.
    on_empty: Literal["create", "fail"] = "create"
    create_retries: int = 3
    create_retry_delay: float = 5
    #: What is left of an idle pool; `target_ready` if `None`.
    min_ready: int | None = None
    #: Whether demand raises what is kept, between `target_ready` and `max_ready`.
    adaptive: bool = True
    #: What those that wait may cost, in dollars, at the server's prices.
    max_cost_per_hour: float | None = None
    max_cost_per_day: float | None = None
    #: Whether its sandboxes can be given secrets or a budget for LLM calls.
    secrets: bool = False

    def __post_init__(self) -> None:
        if self.on_empty not in ("create", "fail"):
            raise ValueError(f"on_empty is 'create' or 'fail', not {self.on_empty!r}")
        if not 0 <= self.target_ready <= self.max_ready:
            raise ValueError(f"target_ready is 0 to max_ready ({self.max_ready}), not {self.target_ready}")
        if self.min_ready is not None and not 0 <= self.min_ready <= self.target_ready:
            raise ValueError(f"min_ready is 0 to target_ready ({self.target_ready}), not {self.min_ready}")

    def to_json(self) -> Json:
        """As the server wants it."""
        times = ("idle_timeout", "scale_down_delay", "cooldown_after_acquire", "max_warm_age", "create_retry_delay")
        said: Json = {name: duration(max(getattr(self, name), 0.001)) for name in times}
        said["health_check_interval"] = duration(self.health_check_interval) if self.health_check_interval else NEVER
        plain = ("max_ready", "target_ready", "min_ready", "adaptive", "on_empty", "create_retries", "secrets")
        said |= {name: getattr(self, name) for name in plain}
        return said | {"max_cost_per_hour": self.max_cost_per_hour, "max_cost_per_day": self.max_cost_per_day}


@dataclass
class PoolMetrics:
    """What a pool did."""

    ready: int = 0
    creating: int = 0
    in_use: int = 0
    total_acquires: int = 0
    acquires_from_pool: int = 0
    acquires_cold_start: int = 0
    avg_acquire_latency_ms: float = 0.0
    scale_up_events: int = 0
    scale_down_events: int = 0
    failed_creates: int = 0
    health_check_removals: int = 0
    #: How many are wanted ready, and what that comes from: target, demand, idle, max, quota, total, server, cost or drained.
    wanted: int = 0
    bound: str = ""
    #: Acquires a second, smoothed, and what is kept beyond what they ask for.
    demand_per_second: float = 0.0
    headroom: float = 0.0

    @property
    def pool_hit_rate(self) -> float:
        """Of the acquires, how many did not have to wait for a new one."""
        return self.acquires_from_pool / self.total_acquires if self.total_acquires else 0.0

    @classmethod
    def of(cls, told: Json) -> PoolMetrics:
        """As the server tells it."""
        known = {**told["metrics"], **told.get("sizing", {})}
        return cls(**{name: known[name] for name in cls.__dataclass_fields__ if name in known})


class SandboxManager:
    """Keeps sandboxes ready and hands them out, each to one user."""

    def __init__(
        self,
        pools: Mapping[str, PoolConfig] | None = None,
        default_pool_config: PoolConfig | None = None,
        max_total_sandboxes: int | None = None,
        max_concurrent_creates: int = 10,
        sandbox_defaults: Mapping[str, Any] | None = None,
        *,
        client: AsyncClient | None = None,
    ) -> None:
        """`max_concurrent_creates` is taken for those who come from the reference: the server knows its processors."""
        self._configs = dict(pools or {})
        self._default, self._limit = default_pool_config or PoolConfig(), max_total_sandboxes
        self._defaults = {"ttl": "1h", **(sandbox_defaults or {})}
        self._given_client = client
        self._runs = False
        #: What the server calls the pool of an image.
        self._names: dict[str, str] = {}
        self._own = uuid.uuid4().hex[:8]
        self._meter = _Meter(self)
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"SandboxManager({', '.join(self._configs) or 'no pools'}{'' if self._runs else ', not running'})"

    # --- its life

    async def start(self) -> None:
        """Tells the server to fill the pools, in the background."""
        if self._runs:
            return
        self._client = self._given_client or AsyncClient.default()
        place = self._client.place
        self._blocking = Client.default(None if place.socket else place.url, place.key)
        self._runs = True
        for image in self._configs:
            await self._set(image)
        self._heart = asyncio.create_task(self._beat())

    async def shutdown(self, timeout: float = 60, wait_for_active: bool = False) -> None:
        """Deletes what is ready. Sandboxes in use are waited for, or left to their users and their own time."""
        self._runs = False
        if not hasattr(self, "_heart"):
            return
        self._heart.cancel()
        ends = time.monotonic() + timeout
        while wait_for_active and time.monotonic() < ends and any(one.in_use for one in self.metrics().values()):
            await asyncio.sleep(0.1)
        gone = (self._client.ask("DELETE", f"/pools/{name}") for name in self._names.values())
        await asyncio.gather(self._heart, *gone, return_exceptions=True)
        self._names.clear()

    async def __aenter__(self) -> SandboxManager:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def warm_up(self, timeout: float = 120) -> None:
        """Waits until every pool has its `target_ready`."""
        if not self._runs:
            raise PoolShutdownError("the manager is not running")

        async def fill(image: str, name: str) -> str | None:
            try:
                said = {"timeout": duration(timeout)}
                await self._client.ask("POST", f"/pools/{name}/fill", json=said, timeout=timeout + 30)
            except ConflictError as error:
                ready = PoolMetrics.of(await self._client.ask("GET", f"/pools/{name}")).ready
                return f"{image} {ready} of {self._configs[image].target_ready}: {error.message}"
            return None

        short = [why for why in await asyncio.gather(*(fill(*one) for one in self._names.items())) if why]
        if short:
            raise WarmUpTimeoutError(f"the pools are not filled: {'; '.join(short)}")

    # --- handing out

    async def acquire(self, image: str = "python", timeout: float | None = None) -> Sandbox:
        """A sandbox of this image, to be deleted after use. `AsyncSandbox` is what `acquire_async` gives."""
        return Sandbox((await self.acquire_async(image, timeout)).info, self._blocking)

    async def acquire_async(self, image: str = "python", timeout: float | None = None) -> AsyncSandbox:
        """The same, for use with `await`."""
        if not self._runs:
            raise PoolShutdownError("the manager is not running")
        if image not in self._names:
            self._configs.setdefault(image, self._default)
            await self._set(image)
        began = time.monotonic()
        options = {**self._defaults, "image": image, "pool": self._names[image], "wait_ready": False}
        making = AsyncSandbox.create(client=self._client, **options)
        try:
            sandbox = await asyncio.wait_for(making, timeout)
        except asyncio.TimeoutError:
            raise PoolExhaustedError(f"no {image} sandbox within {timeout} seconds") from None
        except (ConflictError, QuotaError) as error:
            raise PoolExhaustedError(error.message, status=error.status) from error
        self._meter.acquired(image, (time.monotonic() - began) * 1000)
        return sandbox

    async def acquire_with_snapshot(
        self,
        image: str,
        snapshot_id: str | None = None,
        *,
        timeout: float | None = None,
        spaces_config: SpacesConfig | None = None,
    ) -> Sandbox:
        """A sandbox that starts from a snapshot's files: nothing has to be restored into one from the pool.

        The snapshot knows its image; that and `spaces_config` are taken for those who come from the reference.
        """
        options = {**self._defaults, "image": snapshot_id or image}
        made = await asyncio.wait_for(AsyncSandbox.create(client=self._client, **options), timeout)
        return Sandbox(made.info, self._blocking)

    async def wake_hibernated(self, hibernated: HibernatedSandbox, *, timeout: float | None = None) -> Sandbox:
        """Starts a hibernated sandbox again."""
        woken = await asyncio.wait_for(AsyncSandbox.wake(hibernated, client=self._client), timeout)
        return Sandbox(woken.info, self._blocking)

    async def release(self, sandbox: Sandbox | AsyncSandbox, image: str | None = None) -> None:
        """Deletes a sandbox that was acquired: nobody gets what somebody else has used."""
        await AsyncSandbox(sandbox.info, self._client).delete()

    def metrics(self) -> dict[str, PoolMetrics]:
        """What each pool did, as the server counts it."""
        told = {image: self._blocking.ask("GET", f"/pools/{name}") for image, name in self._names.items()}
        return {image: PoolMetrics.of(one) for image, one in told.items()}

    # --- the same for programs without an event loop: it runs in a thread of its own

    def start_sync(self) -> None:
        """Starts it, and keeps its pools alive until `shutdown_sync`."""
        if self._thread is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="sloplet-pools", daemon=True)
            self._thread.start()
        try:
            self._wait(self.start())
        except BaseException:
            self._end_thread()
            raise

    def acquire_sync(self, image: str = "python", timeout: float | None = None) -> Sandbox:
        """See `acquire`."""
        return self._wait(self.acquire(image, timeout))

    def acquire_with_snapshot_sync(self, image: str, snapshot_id: str | None = None, timeout: float | None = None) -> Sandbox:
        """See `acquire_with_snapshot`."""
        return self._wait(self.acquire_with_snapshot(image, snapshot_id, timeout=timeout))

    def wake_hibernated_sync(self, hibernated: HibernatedSandbox, timeout: float | None = None) -> Sandbox:
        """See `wake_hibernated`."""
        return self._wait(self.wake_hibernated(hibernated, timeout=timeout))

    def release_sync(self, sandbox: Sandbox | AsyncSandbox, image: str | None = None) -> None:
        """See `release`."""
        self._wait(self.release(sandbox, image))

    def warm_up_sync(self, timeout: float = 120) -> None:
        """See `warm_up`."""
        self._wait(self.warm_up(timeout))

    def shutdown_sync(self, timeout: float = 60, wait_for_active: bool = False) -> None:
        """See `shutdown`."""
        if self._thread is None:
            return
        try:
            self._wait(self.shutdown(timeout, wait_for_active))
        finally:
            self._end_thread()

    def __enter__(self) -> SandboxManager:
        self.start_sync()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown_sync()

    def _wait(self, task: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            task.close()
            raise PoolShutdownError("the manager is not running", hint="manager.start_sync() first")
        return asyncio.run_coroutine_threadsafe(task, self._loop).result()

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._thread = None

    # --- how

    async def _set(self, image: str) -> None:
        """Has the server keep a pool."""
        name = f"manager-{self._own}-{re.sub('[^A-Za-z0-9_.-]', '-', image)[:32]}"
        said = {name: self._defaults[name] for name in FIXED if name in self._defaults}
        said |= {name: size(self._defaults[name]) for name in ("memory", "disk") if name in self._defaults}
        if "instance_size" in self._defaults:
            said |= machine(self._defaults["instance_size"])
        said["image"] = await _well_known(self._client, image) if image in WELL_KNOWN else image
        said |= self._configs[image].to_json() | {"max_total": self._limit, "lease": duration(LEASE)}
        await self._client.ask("PUT", f"/pools/{name}", json=said)
        self._names[image] = name

    async def _beat(self) -> None:
        """Tells the server that the pools are still wanted; one that it has forgotten is told again."""
        while self._runs:
            await asyncio.sleep(HEARTBEAT)
            for image, name in list(self._names.items()):
                try:
                    await self._client.ask("GET", f"/pools/{name}")
                except NotFoundError:
                    await self._set(image)
                except SandboxError:
                    pass  # The server is away: the next beat tells.


class _Meter:
    """Tells OpenTelemetry, if it is installed, under the names that the reference has."""

    def __init__(self, manager: SandboxManager) -> None:
        try:
            metrics: Any = importlib.import_module("opentelemetry.metrics")
        except ImportError:
            self._latency: Any = None
            return
        meter = metrics.get_meter("sloplet")
        self._latency = meter.create_histogram("sandbox.acquire.latency_ms")

        def observe(*figures: tuple[str, Json]) -> Any:
            def look(_: Any) -> list[Any]:
                found = manager.metrics().items() if manager._names else ()
                of = metrics.Observation
                return [of(getattr(one, name), {"image": image, **about}) for image, one in found for name, about in figures]

            return look

        for name in ("ready", "creating"):
            meter.create_observable_gauge(f"sandbox.pool.{name}", callbacks=[observe((name, {}))])
        sources = [("acquires_from_pool", {"source": "pool"}), ("acquires_cold_start", {"source": "cold_start"})]
        meter.create_observable_counter("sandbox.acquire.total", callbacks=[observe(*sources)])
        made = [("scale_up_events", {"success": True}), ("failed_creates", {"success": False})]
        meter.create_observable_counter("sandbox.create.total", callbacks=[observe(*made)])
        scaled = [("scale_up_events", {"direction": "up"}), ("scale_down_events", {"direction": "down"})]
        meter.create_observable_counter("sandbox.scale.events", callbacks=[observe(*scaled)])

    def acquired(self, image: str, took_ms: float) -> None:
        if self._latency:
            self._latency.record(took_ms, {"image": image})
