"""What differs between waiting and blocking besides the words `async` and `await`: for those who wait."""

from __future__ import annotations

import asyncio
import weakref
from asyncio import sleep as sleep
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

import httpx

from ._find import Place

HttpClient = httpx.AsyncClient
Transport = httpx.AsyncHTTPTransport


async def run_program(words: list[str], timeout: float) -> tuple[int, str, str]:
    """Runs a program on this machine; its exit code, output and errors."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    try:
        output, errors = await asyncio.wait_for(process.communicate(), timeout)
    except (asyncio.TimeoutError, asyncio.CancelledError):
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace")


async def pieces(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Local data as a body. Between two pieces others get their turn."""
    for part in parts:
        yield part
        await asyncio.sleep(0)


T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Does something to its end even if the task is cancelled meanwhile, once or (as anyio's scopes do) again and again."""
    # In a task of its own: a scope around this one does not reach it.
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            # Whoever cancels at every turn of the loop would keep it from anything else.
            await _turn(task)
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


async def _turn(task: asyncio.Future[Any]) -> None:
    try:
        await asyncio.wait([task], timeout=0.01)
    except asyncio.CancelledError:
        pass


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Place, Any]] = weakref.WeakKeyDictionary()


def shared() -> dict[Place, Any]:
    """Clients of this event loop: connections cannot be used from another."""
    return _shared.setdefault(asyncio.get_running_loop(), {})
