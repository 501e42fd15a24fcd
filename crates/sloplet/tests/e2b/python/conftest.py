"""Sandboxes for tests with E2B's own Python package. E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL name the server."""

import asyncio

import pytest
from e2b import AsyncSandbox, Sandbox

from wire import Wire


@pytest.fixture(scope="module")
def sandbox():
    made = Sandbox.create(timeout=300)
    yield made
    made.kill()


@pytest.fixture
def own_sandbox():
    """One that a test may break."""
    made = Sandbox.create(timeout=120)
    yield made
    made.kill()


@pytest.fixture(scope="module")
def wire(sandbox):
    """Plain requests to the sandbox's own API, for what no SDK would send."""
    return Wire(sandbox)


@pytest.fixture
def in_async():
    """Runs a coroutine function with a sandbox of the asynchronous kind."""

    def run(work):
        async def whole():
            made = await AsyncSandbox.create(timeout=120)
            try:
                return await work(made)
            finally:
                await made.kill()

        return asyncio.run(asyncio.wait_for(whole(), 60))

    return run
