"""Pools, with images that start fast."""

import asyncio
import subprocess
import sys
import time

import pytest
from sloplet import (
    AsyncSandbox,
    Client,
    CommandExecutionError,
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


def pools_of_server():
    return [one["name"] for one in Client.default().ask("GET", "/pools")]


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
        assert pools.metrics()["host"].ready == 2 and count() == 0, "what waits is nobody's sandbox"
        assert (pools.metrics()["host"].wanted, pools.metrics()["host"].bound) == (2, "target")
        sandbox = await pools.acquire(image="host")
        assert isinstance(sandbox, Sandbox) and sandbox.exec("echo warm").stdout == "warm\n"
        assert sandbox.refresh().ends_at - sandbox.info.created_at < 400, "its time is its user's, not the pool's"
        waiting = await pools.acquire_async("host")
        assert isinstance(waiting, AsyncSandbox) and (await waiting.exec("echo too")).stdout == "too\n"
        assert pools.metrics()["host"].in_use == 2 and count() == 2
        sandbox.delete()
        await pools.release(waiting)
        await pools.warm_up(timeout=60)
        told = pools.metrics()["host"]
        assert (told.in_use, told.total_acquires, told.acquires_from_pool, told.pool_hit_rate) == (0, 2, 2, 1.0)
        assert told.avg_acquire_latency_ms > 0 and told.scale_up_events >= 4
        assert len(pools_of_server()) == 1
    assert count() == 0 and pools_of_server() == []
    with pytest.raises(PoolShutdownError):
        await pools.acquire("host")


async def test_an_empty_pool_makes_one_or_fails():
    pools = manager(pools={"host": PoolConfig(on_empty="fail", max_ready=0, **FAST)}, max_total_sandboxes=1)
    await pools.start()
    with pytest.raises(PoolExhaustedError, match="ready"):
        await pools.acquire("host")
    await pools.shutdown()
    pools = manager(pools={"host": PoolConfig(max_ready=0, **FAST)}, max_total_sandboxes=1)
    await pools.start()
    first = await pools.acquire("host")
    assert pools.metrics()["host"].acquires_cold_start == 1
    with pytest.raises(PoolExhaustedError, match="as many as may be"):
        await pools.acquire("host")
    Sandbox.get_from_id(first.id).delete()  # not through the manager: the server knows
    second = await pools.acquire("host")
    await pools.shutdown()
    assert second.state == SandboxState.RUNNING, "those in use are left to their users"
    second.delete()
    failing = manager(pools={"nope": PoolConfig(target_ready=1, **FAST)})
    await failing.start()
    with pytest.raises(WarmUpTimeoutError, match="nope 0 of 1"):
        await failing.warm_up(timeout=30)
    assert failing.metrics()["nope"].failed_creates >= 1
    await failing.shutdown()
    for bad in ({"on_empty": "wait"}, {"target_ready": 11}, {"min_ready": 1}):
        with pytest.raises(ValueError):
            PoolConfig(**bad)


async def test_idle_pools_shrink_and_snapshots_and_hibernated_ones_come_back():
    config = PoolConfig(target_ready=1, max_ready=3, idle_timeout=0.2, cooldown_after_acquire=0.2, scale_down_delay=0.05)
    async with manager(pools={"host": config}) as pools:
        await pools.warm_up(timeout=60)
        users = await asyncio.gather(*(pools.acquire("host") for _ in range(3)))
        assert len({one.id for one in users}) == 3 and all(one.exec("true").success for one in users)
        await until(lambda: (lambda told: told.ready == 1 and not told.creating)(pools.metrics()["host"]))
        for one in users:
            await pools.release(one)
        snap = await AsyncSandbox.create(ttl="5m")
        await snap.filesystem.write_file("/tmp/x", "saved")
        saved = await snap.create_snapshot()
        from_snapshot = await pools.acquire_with_snapshot("host", saved.id)
        assert from_snapshot.exec("cat /tmp/x").stdout == "saved"
        sleeping = from_snapshot.hibernate()
        assert (await pools.wake_hibernated(sleeping)).exec("cat /tmp/x").stdout == "saved"
        from_snapshot.delete()
        await snap.delete()
        await snap.snapshots.delete(saved.id)


def test_the_same_without_an_event_loop():
    with manager(pools={"host": PoolConfig(target_ready=1, max_ready=2, secrets=True)}) as pools:
        pools.warm_up_sync(timeout=60)
        sandbox = pools.acquire_sync("host", timeout=60)
        with pytest.raises(CommandExecutionError, match="git.example.com"):  # which is nowhere; the token was taken
            sandbox.git_checkout("https://git.example.com/x", "/tmp/x", credentials="t")
        assert sandbox.exec("echo warm").stdout == "warm\n" and pools.metrics()["host"].acquires_from_pool == 1
        saved = sandbox.create_snapshot()
        copy = pools.acquire_with_snapshot_sync("host", saved.id, timeout=60)
        woken = pools.wake_hibernated_sync(copy.hibernate(), timeout=60)
        assert woken.id == copy.id and woken.exec("true").success
        # Whoever does not wait is not forgotten: the pool is filled again while nobody calls.
        pools.release_sync(sandbox)
        pools.release_sync(woken, "host")
        sandbox.snapshots.delete(saved.id)
        ends = time.monotonic() + 60
        while pools.metrics()["host"].ready < 1:
            assert time.monotonic() < ends, "nobody fills the pool"
            time.sleep(0.05)
    assert pools_of_server() == [] and count() == 0
    with pytest.raises(PoolShutdownError, match="start_sync"):
        pools.acquire_sync("host")
    pools.shutdown_sync()  # need not run


KILLED = """
import asyncio, sys
import sloplet.manager
from sloplet import PoolConfig, SandboxManager

sloplet.manager.LEASE = 2.0
pools = SandboxManager(pools={"host": PoolConfig(target_ready=1, max_ready=1)}, sandbox_defaults={"metadata": {"pool": "test"}, "ttl": "3s"})
pools.start_sync()
pools.warm_up_sync()
print(pools.acquire_sync("host").id, flush=True)
sys.stdin.read()
"""


async def test_a_program_that_is_killed_leaves_nothing_and_others_are_served():
    """What it had ends with its time, its pool with its lease; a pool of somebody else's is filled all the while."""
    words = [sys.executable, "-c", KILLED]
    program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        left = program.stdout.readline().strip()
        assert Sandbox.get_from_id(left).is_ready() and len(pools_of_server()) == 1
    finally:
        program.kill()
        program.wait()
        program.stdin.close()
        program.stdout.close()
    async with manager(pools={"host": PoolConfig(target_ready=1, max_ready=1)}) as pools:
        await pools.warm_up(timeout=60)
        await pools.release(await pools.acquire("host"))
        await until(lambda: pools.metrics()["host"].ready == 1)
        await until(lambda: left not in [one.id for one in Client.default().list_sandboxes()])
        await until(lambda: pools_of_server() == list(pools._names.values()))
    assert count() == 0
