"""Pools, with images that start fast."""

import asyncio

import pytest
from sloplet import (
    AsyncSandbox,
    Client,
    PoolConfig,
    PoolExhaustedError,
    PoolShutdownError,
    Sandbox,
    SandboxManager,
    SandboxState,
    WarmUpTimeoutError,
)

FAST = {"create_retries": 0, "create_retry_delay": 0.01}


def count():
    return len(Client.default().list_sandboxes(metadata={"pool": "test"}))


def manager(**options):
    return SandboxManager(sandbox_defaults={"metadata": {"pool": "test"}, "ttl": "5m"}, **options)


async def until(condition):
    for _ in range(1500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never became true")


async def test_a_pool_is_filled_handed_out_and_filled_again():
    async with manager(pools={"host": PoolConfig(target_ready=2, max_ready=4)}) as pools:
        await pools.warm_up(timeout=60)
        assert pools.metrics()["host"].ready == 2 and count() == 2
        sandbox = await pools.acquire(image="host")
        assert isinstance(sandbox, Sandbox) and sandbox.exec("echo warm").stdout == "warm\n"
        assert sandbox.refresh().ends_at - sandbox.info.created_at < 400, "its time is its user's, not the pool's"
        waiting = await pools.acquire_async("host")
        assert isinstance(waiting, AsyncSandbox) and (await waiting.exec("echo too")).stdout == "too\n"
        assert pools.metrics()["host"].in_use == 2
        sandbox.delete()
        await pools.release(waiting)
        await pools.warm_up(timeout=60)
        told = pools.metrics()["host"]
        assert (told.in_use, told.total_acquires, told.acquires_from_pool, told.pool_hit_rate) == (0, 2, 2, 1.0)
        assert told.avg_acquire_latency_ms > 0 and told.scale_up_events >= 4
    assert count() == 0
    with pytest.raises(PoolShutdownError):
        await pools.acquire("host")


async def test_an_empty_pool_makes_one_or_fails():
    pools = manager(pools={"host": PoolConfig(on_empty="fail", **FAST)}, max_total_sandboxes=1)
    await pools.start()
    with pytest.raises(PoolExhaustedError, match="ready"):
        await pools.acquire("host")
    pools._pools["host"].config = PoolConfig(max_ready=0, **FAST)
    first = await pools.acquire("host")
    assert pools.metrics()["host"].acquires_cold_start == 1
    with pytest.raises(PoolExhaustedError, match="as many as may be"):
        await pools.acquire("host")
    Sandbox.get_from_id(first.id).delete()  # not through the manager: it finds out
    second = await pools.acquire("host")
    await pools.shutdown()
    assert second.state == SandboxState.RUNNING, "those in use are left to their users"
    second.delete()
    failing = manager(pools={"nope": PoolConfig(target_ready=1, **FAST)})
    await failing.start()
    with pytest.raises(WarmUpTimeoutError, match="nope 0 of 1"):
        await failing.warm_up(timeout=0.5)
    assert failing.metrics()["nope"].failed_creates >= 1
    await failing.shutdown()
    with pytest.raises(ValueError):
        PoolConfig(on_empty="wait")  # type: ignore[arg-type]


async def test_what_died_or_is_old_is_replaced_and_idle_pools_shrink():
    config = PoolConfig(target_ready=1, max_ready=3, idle_timeout=0.1, cooldown_after_acquire=0.1, scale_down_delay=0.1)
    async with manager(pools={"host": config}) as pools:
        await pools.warm_up(timeout=60)
        pool = pools._pools["host"]
        await pool.ready[0].sandbox.delete()
        sandbox = await pools.acquire("host")
        assert sandbox.exec("true").success and pools.metrics()["host"].health_check_removals == 1
        assert pool.extra == 1, "what was missing is kept ready from now on"
        await until(lambda: pool.extra == 0 and len(pool.ready) == 1 and not pools.metrics()["host"].creating)
        old = pool.ready[0].sandbox
        pool.ready[0].born -= config.max_warm_age + 1
        await until(lambda: pool.ready and pool.ready[0].sandbox.id != old.id)
        await pools.release(sandbox)
        snap = await old.__class__.create(ttl="5m")
        await snap.filesystem.write_file("/tmp/x", "saved")
        saved = await snap.create_snapshot()
        from_snapshot = await pools.acquire_with_snapshot(saved.id)
        assert from_snapshot.exec("cat /tmp/x").stdout == "saved"
        sleeping = from_snapshot.hibernate()
        assert (await pools.wake_hibernated(sleeping)).exec("cat /tmp/x").stdout == "saved"
        from_snapshot.delete()
        await snap.delete()
        await snap.snapshots.delete(saved.id)
