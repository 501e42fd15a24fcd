"""Pools of sandboxes that are ready before they are asked for."""

from __future__ import annotations

import asyncio
import importlib
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ._async.client import AsyncClient
from ._async.sandbox import AsyncSandbox
from ._sync.client import Client
from ._sync.sandbox import Sandbox
from .errors import PoolExhaustedError, PoolShutdownError, SandboxError, WarmUpTimeoutError
from .types import HibernatedSandbox

#: Seconds between looks at a pool that nothing happens in.
TICK = 1.0

#: Seconds that a sandbox outlives its time in the pool: if this program is killed, nothing is left after that.
GRACE = 300


@dataclass(frozen=True)
class PoolConfig:
    """How many sandboxes of an image are kept ready. Times are in seconds."""

    max_ready: int = 10
    #: So many are always kept.
    target_ready: int = 0
    #: A pool without acquires for so long is idle: it shrinks to `target_ready`.
    idle_timeout: float = 60
    #: Between two deletions while it shrinks.
    scale_down_delay: float = 60
    #: After an acquire it does not shrink for so long.
    cooldown_after_acquire: float = 120
    #: One that waited for so long is replaced.
    max_warm_age: float = 1800
    #: 0: never.
    health_check_interval: float = 60
    #: When none is ready: make one, or raise `PoolExhaustedError`.
    on_empty: Literal["create", "fail"] = "create"
    create_retries: int = 3
    create_retry_delay: float = 5

    def __post_init__(self) -> None:
        if self.on_empty not in ("create", "fail"):
            raise ValueError(f"on_empty is 'create' or 'fail', not {self.on_empty!r}")
        if not 0 <= self.target_ready <= self.max_ready:
            raise ValueError(f"target_ready is 0 to max_ready ({self.max_ready}), not {self.target_ready}")


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

    @property
    def pool_hit_rate(self) -> float:
        """Of the acquires, how many did not have to wait for a new one."""
        return self.acquires_from_pool / self.total_acquires if self.total_acquires else 0.0


@dataclass
class _Warm:
    sandbox: AsyncSandbox
    born: float


@dataclass
class _Pool:
    image: str
    config: PoolConfig
    metrics: PoolMetrics = field(default_factory=PoolMetrics)
    ready: deque[_Warm] = field(default_factory=deque)
    creating: set[asyncio.Task[None]] = field(default_factory=set)
    #: Wanted beyond the target: one more for each acquire that found nothing ready.
    extra: int = 0
    acquired_at: float = -math.inf
    shrunk_at: float = -math.inf
    checked_at: float = 0.0

    def wanted(self) -> int:
        return min(self.config.target_ready + self.extra, self.config.max_ready)


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
        self._pools = {image: _Pool(image, config) for image, config in (pools or {}).items()}
        self._default, self._limit = default_pool_config or PoolConfig(), max_total_sandboxes
        self._defaults = {"ttl": "1h", **(sandbox_defaults or {})}
        self._most_creates = max_concurrent_creates
        self._given_client = client
        self._runs = False
        self._in_use: dict[str, _Pool] = {}
        self._meter = _Meter(self)

    def __repr__(self) -> str:
        ready = ", ".join(f"{image}: {len(pool.ready)} ready" for image, pool in self._pools.items())
        return f"SandboxManager({ready or 'no pools'}{'' if self._runs else ', not running'})"

    # --- its life

    async def start(self) -> None:
        """Begins to fill the pools, in the background."""
        if self._runs:
            return
        self._client = self._given_client or AsyncClient.default()
        place = self._client.place
        self._blocking = Client.default(None if place.socket else place.url, place.key)
        self._slots = asyncio.Semaphore(self._most_creates)
        self._changed = asyncio.Event()
        self._runs = True
        self._keeper = asyncio.create_task(self._keep())

    async def shutdown(self, wait_for_active: bool = False, timeout: float = 60) -> None:
        """Deletes what is ready. Sandboxes in use are waited for, or left to their users and their own time."""
        self._runs = False
        if not hasattr(self, "_keeper"):
            return
        self._keeper.cancel()
        making = [task for pool in self._pools.values() for task in pool.creating]
        for task in making:
            task.cancel()
        await asyncio.gather(self._keeper, *making, return_exceptions=True)
        ends = time.monotonic() + timeout
        while wait_for_active and self._in_use and time.monotonic() < ends:
            await self._forget_gone()
            await asyncio.sleep(0.1)
        waiting = [pool.ready.popleft().sandbox for pool in self._pools.values() for _ in range(len(pool.ready))]
        await asyncio.gather(*(one.delete() for one in waiting), return_exceptions=True)

    async def __aenter__(self) -> SandboxManager:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def warm_up(self, timeout: float = 120) -> None:
        """Waits until every pool has its `target_ready`."""
        ends = time.monotonic() + timeout
        while short := [pool for pool in self._pools.values() if len(pool.ready) < pool.config.target_ready]:
            if not self._runs:
                raise PoolShutdownError("the manager is not running")
            if time.monotonic() > ends:
                missing = ", ".join(f"{p.image} {len(p.ready)} of {p.config.target_ready}" for p in short)
                raise WarmUpTimeoutError(f"the pools are not filled after {timeout} seconds: {missing}")
            await asyncio.sleep(0.01)

    # --- handing out

    async def acquire(self, image: str = "python", timeout: float | None = None) -> Sandbox:
        """A sandbox of this image, to be deleted after use. `AsyncSandbox` is what `acquire_async` gives."""
        sandbox = await self.acquire_async(image, timeout)
        blocking = Sandbox(sandbox.info, self._blocking)
        blocking.on_delete = sandbox.on_delete
        return blocking

    async def acquire_async(self, image: str = "python", timeout: float | None = None) -> AsyncSandbox:
        """The same, for use with `await`."""
        if not self._runs:
            raise PoolShutdownError("the manager is not running")
        pool, began = self._pool(image), time.monotonic()
        pool.acquired_at = began
        try:
            sandbox, warm = await asyncio.wait_for(self._take(pool), timeout)
        except asyncio.TimeoutError:
            raise PoolExhaustedError(f"no {image} sandbox within {timeout} seconds") from None
        finally:
            self._changed.set()
        self._in_use[sandbox.id] = pool
        sandbox.on_delete = lambda: self._returned(sandbox.id)
        took, metrics = (time.monotonic() - began) * 1000, pool.metrics
        metrics.total_acquires += 1
        metrics.acquires_from_pool += warm
        metrics.acquires_cold_start += not warm
        metrics.avg_acquire_latency_ms += (took - metrics.avg_acquire_latency_ms) / metrics.total_acquires
        self._meter.acquired(image, warm, took)
        return sandbox

    async def acquire_with_snapshot(self, snapshot_id: str, image: str = "python", timeout: float | None = None) -> Sandbox:
        """A sandbox that starts from a snapshot's files: nothing has to be restored into one from the pool."""
        made = await asyncio.wait_for(AsyncSandbox.create(client=self._client, **{**self._defaults, "image": snapshot_id}), timeout)
        return Sandbox(made.info, self._blocking)

    async def wake_hibernated(self, hibernated: HibernatedSandbox) -> Sandbox:
        """Starts a hibernated sandbox again."""
        woken = await AsyncSandbox.wake(hibernated, client=self._client)
        return Sandbox(woken.info, self._blocking)

    async def release(self, sandbox: Sandbox | AsyncSandbox) -> None:
        """Deletes a sandbox that was acquired: nobody gets what somebody else has used."""
        self._returned(sandbox.id)
        await AsyncSandbox(sandbox.info, self._client).delete()

    def metrics(self) -> dict[str, PoolMetrics]:
        """What each pool did."""
        for pool in self._pools.values():
            pool.metrics.ready, pool.metrics.creating = len(pool.ready), len(pool.creating)
            pool.metrics.in_use = sum(1 for one in self._in_use.values() if one is pool)
        return {image: pool.metrics for image, pool in self._pools.items()}

    # --- how

    def _pool(self, image: str) -> _Pool:
        if image not in self._pools:
            self._pools[image] = _Pool(image, self._default)
        return self._pools[image]

    def _returned(self, sandbox: str) -> None:
        self._in_use.pop(sandbox, None)

    async def _take(self, pool: _Pool) -> tuple[AsyncSandbox, bool]:
        while pool.ready:
            # Asking for its life to be extended tells whether it lives.
            sandbox = pool.ready.popleft().sandbox
            try:
                await sandbox.set_ttl(self._defaults["ttl"])
                return sandbox, True
            except SandboxError:
                pool.metrics.health_check_removals += 1
        if pool.config.on_empty == "fail":
            raise PoolExhaustedError(f"no {pool.image} sandbox is ready")
        pool.extra = min(pool.extra + 1, pool.config.max_ready - pool.config.target_ready)
        if self._is_full():
            await self._forget_gone()
            if self._is_full():
                raise PoolExhaustedError(f"there are {self._limit} sandboxes already, as many as may be")
        return await self._create(pool, self._defaults["ttl"]), False

    def _is_full(self) -> bool:
        known = sum(len(pool.ready) + len(pool.creating) for pool in self._pools.values()) + len(self._in_use)
        return self._limit is not None and known >= self._limit

    async def _forget_gone(self) -> None:
        there = {one.id for one in await self._client.list_sandboxes()}
        for gone in self._in_use.keys() - there:
            self._returned(gone)

    async def _create(self, pool: _Pool, ttl: Any) -> AsyncSandbox:
        for attempt in range(pool.config.create_retries + 1):
            try:
                async with self._slots:
                    options = {**self._defaults, "image": pool.image, "ttl": ttl}
                    made = await AsyncSandbox.create(client=self._client, **options)
                self._meter.created(pool.image, True)
                return made
            except SandboxError:
                pool.metrics.failed_creates += 1
                self._meter.created(pool.image, False)
                if attempt == pool.config.create_retries:
                    raise
            await asyncio.sleep(pool.config.create_retry_delay)
        raise AssertionError("unreachable")

    async def _add(self, pool: _Pool) -> None:
        sandbox = await self._create(pool, pool.config.max_warm_age + GRACE)
        if not self._runs:
            await sandbox.delete()
            return
        pool.ready.append(_Warm(sandbox, time.monotonic()))
        self._changed.set()

    async def _keep(self) -> None:
        # Not only until it is cancelled: before Python 3.12, wait_for can swallow that.
        while self._runs:
            self._changed.clear()
            for pool in list(self._pools.values()):
                try:
                    await self._tend(pool, time.monotonic())
                except SandboxError:
                    pass  # The server is away: the next look tells.
            try:
                await asyncio.wait_for(self._changed.wait(), TICK)
            except asyncio.TimeoutError:
                pass

    async def _tend(self, pool: _Pool, now: float) -> None:
        config, metrics = pool.config, pool.metrics
        while pool.ready and now - pool.ready[0].born > config.max_warm_age:
            await pool.ready.popleft().sandbox.delete()
        if config.health_check_interval and now - pool.checked_at > config.health_check_interval:
            pool.checked_at = now
            for warm in list(pool.ready):
                if not await warm.sandbox.is_ready() and warm in pool.ready:
                    pool.ready.remove(warm)
                    metrics.health_check_removals += 1
                    await warm.sandbox.delete()
        quiet = now - pool.acquired_at
        if quiet > max(config.idle_timeout, config.cooldown_after_acquire) and pool.extra:
            if now - pool.shrunk_at > config.scale_down_delay:
                pool.extra, pool.shrunk_at = pool.extra - 1, now
        while len(pool.ready) > pool.wanted():
            metrics.scale_down_events += 1
            self._meter.scaled(pool.image, "down")
            await pool.ready.popleft().sandbox.delete()
        pool.creating = {task for task in pool.creating if not task.done()}
        while len(pool.ready) + len(pool.creating) < pool.wanted() and not self._is_full():
            metrics.scale_up_events += 1
            self._meter.scaled(pool.image, "up")
            task = asyncio.create_task(self._add(pool))
            # One that failed was counted; the next look makes another.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            pool.creating.add(task)


class _Meter:
    """Tells OpenTelemetry, if it is installed, under the names that the reference has."""

    def __init__(self, manager: SandboxManager) -> None:
        try:
            metrics: Any = importlib.import_module("opentelemetry.metrics")
        except ImportError:
            self._counts: dict[str, Any] = {}
            return
        meter = metrics.get_meter("sloplet")
        names = ("sandbox.acquire.total", "sandbox.create.total", "sandbox.scale.events")
        self._counts = {name: meter.create_counter(name) for name in names}
        self._counts["sandbox.acquire.latency_ms"] = meter.create_histogram("sandbox.acquire.latency_ms")

        def gauge(name: str) -> Any:
            def observe(_: Any) -> list[Any]:
                found = manager.metrics().items()
                return [metrics.Observation(getattr(one, name), {"image": image}) for image, one in found]

            return observe

        for name in ("ready", "creating"):
            meter.create_observable_gauge(f"sandbox.pool.{name}", callbacks=[gauge(name)])

    def acquired(self, image: str, warm: bool, took_ms: float) -> None:
        if self._counts:
            about = {"image": image, "source": "pool" if warm else "cold_start"}
            self._counts["sandbox.acquire.total"].add(1, about)
            self._counts["sandbox.acquire.latency_ms"].record(took_ms, about)

    def created(self, image: str, success: bool) -> None:
        if self._counts:
            self._counts["sandbox.create.total"].add(1, {"image": image, "success": success})

    def scaled(self, image: str, direction: str) -> None:
        if self._counts:
            self._counts["sandbox.scale.events"].add(1, {"image": image, "direction": direction})
