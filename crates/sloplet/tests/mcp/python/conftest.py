"""`sloplet mcp` as the clients of the official package find it."""

import os
import subprocess
from contextlib import asynccontextmanager
from functools import partial, wraps

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

BINARY = os.environ["SLOPLET_BINARY"]
NAMES = ("PATH", "HOME", "SLOPLET_DATA", "SLOPLET_RUN")
ENVIRONMENT = {name: os.environ[name] for name in NAMES}
TOKEN = "a-token-of-the-tests"
PATIENCE = 60

# The revision with a handshake, and the one without.
REVISIONS = ["legacy", "2026-07-28"]


def awaited(test):
    """A test that is a coroutine, with a limit to how long it takes."""

    @wraps(test)
    def run(*arguments, **named):
        async def bounded():
            with anyio.fail_after(PATIENCE):
                await test(*arguments, **named)

        try:
            anyio.run(bounded)
        except BaseExceptionGroup as group:
            # The one that matters, not the task groups around it.
            while isinstance(group, BaseExceptionGroup):
                group = group.exceptions[0]
            raise group from None

    return run


def sloplet(*words):
    """What another command says."""
    done = subprocess.run([BINARY, "--no-autostart", *words], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


def stdio(*options, mode="legacy", **named):
    """A client of a server that it starts itself."""
    parameters = StdioServerParameters(command=BINARY, args=["mcp", *options], env=ENVIRONMENT)
    return Client(parameters, mode=mode, **named)


@asynccontextmanager
async def http(address, mode="legacy"):
    """A client of a server over HTTP."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as web:
        async with Client(streamable_http_client(f"http://{address}/mcp", http_client=web), mode=mode) as client:
            yield client


@pytest.fixture
def serving():
    """Starts servers over HTTP, and ends them."""
    started = []

    def start(*options):
        process = subprocess.Popen(
            [BINARY, "mcp", "--http", "127.0.0.1:0", *options],
            env={**ENVIRONMENT, "SLOPLET_MCP_TOKEN": TOKEN},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        line = process.stderr.readline()
        assert "serving http://" in line, line
        return process, line.split("//")[1].split("/")[0]

    yield start
    for process in started:
        process.terminate()
        assert process.wait(20) == 0
        process.stderr.close()


async def does(client, tool, **arguments):
    """A call that must succeed; its structure."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, (tool, arguments, said(result))
    return result.structured_content


async def fails(client, tool, **arguments):
    """A call that must fail, and what it says."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, (tool, arguments, said(result))
    return said(result)


def said(result):
    """The text of a result."""
    return "\n".join(block.text for block in result.content if block.type == "text")


__all__ = ["REVISIONS", "awaited", "does", "fails", "http", "partial", "said", "sloplet", "stdio"]
