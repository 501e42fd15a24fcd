"""Code that is cancelled, interrupted or killed leaves no sandbox behind."""

import asyncio
import os
import signal
import subprocess
import sys

import anyio
import pytest
from sloplet import AsyncSandbox, Client, Sandbox, _lease


def left(client, mark):
    return client.list_sandboxes(metadata={"mark": mark})


async def test_tasks_that_are_cancelled_at_any_moment_leave_nothing(client):
    async def work(started):
        async with await AsyncSandbox.create(ttl="5m", metadata={"mark": "task"}) as one:
            started.set()
            await one.exec("sleep 60")

    for patience in (0, 0.002, 0.01, 0.05, None):
        started = asyncio.Event()
        task = asyncio.create_task(work(started))
        if patience is None:
            await started.wait()
        else:
            await asyncio.sleep(patience)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert left(client, "task") == []


async def test_scopes_that_are_cancelled_at_any_moment_leave_nothing(client):
    for patience in (0.001, 0.005, 0.02, 0.1, 1.0):
        with anyio.move_on_after(patience) as scope:
            async with await AsyncSandbox.create(ttl="5m", metadata={"mark": "scope"}) as one:
                await one.exec("sleep 60")
        assert scope.cancelled_caught and left(client, "scope") == []
    with anyio.move_on_after(0.5):
        one = await AsyncSandbox.create(ttl="5m", metadata={"mark": "scope"})
        try:
            await anyio.sleep(60)
        finally:
            await one.delete()
    assert left(client, "scope") == []


async def test_several_in_a_group_that_fails_leave_nothing(client):
    async def work(failing):
        async with await AsyncSandbox.create(ttl="5m", metadata={"mark": "group"}) as one:
            if failing:
                raise ValueError("on purpose")
            await one.exec("sleep 60")

    with pytest.raises(BaseException) as raised:
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(work, number == 3)
    assert "on purpose" in repr(raised.value) and left(client, "group") == []


class Interrupted(Client):
    """Whoever uses it is interrupted when a request was carried out and before its answer is known, once for each method."""

    def __init__(self):
        super().__init__()
        self.left = {"POST", "DELETE"}

    def ask(self, method, path, **options):
        said = super().ask(method, path, **options)
        if method in self.left:
            self.left.remove(method)
            raise KeyboardInterrupt
        return said


def test_an_interrupt_while_one_is_made_or_deleted_leaves_nothing(client):
    hasty = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Sandbox.create(ttl="5m", metadata={"mark": "interrupt"}, client=hasty)
    assert hasty.left == set() and left(client, "interrupt") == []


def test_what_a_killed_program_held_goes_and_what_it_did_not_hold_stays(client, eventually):
    program = (
        "import os, sys\nfrom sloplet import Sandbox, _lease\n_lease.LEASE = 1.0\n"
        "kept = Sandbox.create(ttl='5m', metadata={'mark': 'kept'})\n"
        "with Sandbox.create(ttl='5m', metadata={'mark': 'held'}):\n    os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == -signal.SIGKILL
    eventually(lambda: left(client, "held") == [])
    (kept,) = left(client, "kept")
    Sandbox.get_from_id(kept.id).delete()


def test_a_lease_is_renewed_while_the_program_lives(client, eventually, monkeypatch):
    monkeypatch.setattr(_lease, "LEASE", 3.0)
    monkeypatch.setattr(_lease, "HEARTBEAT", 0.2)
    monkeypatch.setitem(_lease._keepers, os.getpid(), _lease._Keeper())
    with Sandbox.create(ttl="5m", metadata={"mark": "renewed"}) as one:
        assert one.exec("sleep 5; echo still").stdout == "still\n"
    assert left(client, "renewed") == []
    # Given up, it stays.
    with Sandbox.create(ttl="5m") as one:
        client.ask("PATCH", f"/sandboxes/{one.id}", json={"lease": "1s"})
        client.ask("PATCH", f"/sandboxes/{one.id}", json={"lease": None})
        assert one.exec("sleep 2; echo still").stdout == "still\n"
