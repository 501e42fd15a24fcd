"""Conversations over HTTP: with sessions, and without."""

import json

import anyio
import httpx2
import pytest
from conftest import REVISIONS, TOKEN, awaited, does, fails, http, said, sloplet

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


def running():
    return {sandbox["id"] for sandbox in json.loads(sloplet("ls", "--json"))}


async def gone(*sandboxes):
    for _ in range(200):
        if not running() & set(sandboxes):
            return
        await anyio.sleep(0.05)
    raise AssertionError(f"still there: {running() & set(sandboxes)}")


@awaited
async def test_each_session_has_a_sandbox(serving):
    process, address = serving()
    async with http(address) as one, http(address) as two:
        first = await does(one, "exec", command="echo one > /tmp/x")
        second = await does(two, "exec", command="test ! -e /tmp/x && echo two > /tmp/x")
        assert second["exit_code"] == 0 and first["sandbox"] != second["sandbox"]
        assert (await does(one, "read_file", path="/tmp/x"))["text"] == "one\n"
        # One conversation cannot name the other's.
        assert "no sandbox" in await fails(one, "read_file", path="/tmp/x", sandbox=second["sandbox"])
        assert running() == {first["sandbox"], second["sandbox"]}
    # A session that its client ends takes its sandbox along.
    await gone(first["sandbox"], second["sandbox"])


@awaited
async def test_without_sessions_the_sandbox_is_named(serving):
    process, address = serving()
    async with http(address, mode="2026-07-28") as client:
        assert "which sandbox" in await fails(client, "read_file", path="/tmp/x")
        made = await client.call_tool("exec", {"command": "echo here > /tmp/x"})
        sandbox = made.structured_content["sandbox"]
        assert sandbox in said(made)
        assert (await does(client, "read_file", path="/tmp/x", sandbox=sandbox))["text"] == "here\n"
        other = (await does(client, "exec", command="ls /tmp/x"))["sandbox"]
        assert other != sandbox
        assert "no sandbox" in await fails(client, "exec", command="true", sandbox="another")
        saved = (await does(client, "snapshot", sandbox=sandbox))["snapshot"]
        restored = (await does(client, "restore", sandbox=sandbox, snapshot=saved))["sandbox"]
        for name in (sandbox, restored):
            assert (await does(client, "read_file", path="/tmp/x", sandbox=name))["text"] == "here\n"
        text = (await client.read_resource(f"sandbox://files/tmp/x?sandbox={restored}")).contents[0].text
        assert text == "here\n"
    # Nobody says that it is over; the end of the server is.
    assert running() == {restored, other}
    process.terminate()
    assert process.wait(20) == 0
    assert running() == set() and json.loads(sloplet("snapshot", "ls", "--json")) == []


@pytest.mark.parametrize("mode", REVISIONS)
@awaited
async def test_a_cancelled_call_is_killed(serving, mode):
    process, address = serving()
    async with http(address, mode=mode) as client:
        sandbox = (await does(client, "exec", command="true"))["sandbox"]

        async def running():
            listed = (await does(client, "list_processes", sandbox=sandbox))["processes"]
            return any(one["running"] and "sleep 4321" in one["command"] for one in listed)

        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "exec", {"command": "sleep 4321; true", "sandbox": sandbox})
            while not await running():
                await anyio.sleep(0.05)
            group.cancel_scope.cancel()
        while await running():
            await anyio.sleep(0.05)


@awaited
async def test_strangers_are_turned_away(serving):
    process, address = serving()
    url, shown = f"http://{address}/mcp", {"Authorization": f"Bearer {TOKEN}", **ACCEPT}
    async with httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0)) as web:

        async def status(headers, **named):
            return (await web.post(url, headers=headers, **(named or {"json": HELLO}))).status_code

        assert await status(ACCEPT) == 401
        assert await status({**ACCEPT, "Authorization": "Bearer wrong"}) == 401
        assert await status({**ACCEPT, "Authorization": TOKEN}) == 401
        assert await status({**shown, "Host": "evil.example.com"}) == 403
        assert await status({**shown, "Origin": "https://evil.example.com"}) == 403
        assert await status({**shown, "Origin": "null"}) == 403
        assert await status({**shown, "Mcp-Session-Id": "none"}) == 404
        assert 400 <= await status(shown, content=b"garbage") < 500
        try:
            assert await status(shown, content=b"[" * 9_000_000) == 413
        except httpx2.TransportError:
            pass  # it hangs up on whoever goes on sending
        assert (await web.get(f"http://{address}/other", headers=shown)).status_code == 404
        assert await status(shown) == 200


@awaited
async def test_in_public_names_are_free_and_pages_are_not(serving):
    process, address = serving("--public", "--origin", "https://app.example.com")
    url, shown = f"http://{address}/mcp", {"Authorization": f"Bearer {TOKEN}", **ACCEPT, "Host": "mcp.example.com"}
    async with httpx2.AsyncClient() as web:

        async def status(**headers):
            return (await web.post(url, headers={**shown, **headers}, json=HELLO)).status_code

        assert await status() == 200
        assert await status(Authorization="Bearer wrong") == 401
        assert await status(Origin="https://app.example.com") == 200
        assert await status(Origin="https://evil.example.com") == 403


@awaited
async def test_there_is_an_end_to_how_many_converse(serving):
    process, address = serving()
    url, shown = f"http://{address}/mcp", {"Authorization": f"Bearer {TOKEN}", **ACCEPT}
    async with httpx2.AsyncClient(timeout=60) as web:

        async def begin():
            return await web.post(url, headers=shown, json=HELLO)

        begun = [await begin() for _ in range(128)]
        assert {one.status_code for one in begun} == {200}
        refused = await begin()
        assert refused.status_code >= 500 and "128 conversations" in refused.text, (refused.status_code, refused.text)
        # When one ends, there is room for another.
        ended = await web.delete(url, headers={**shown, "Mcp-Session-Id": begun[0].headers["mcp-session-id"]})
        assert ended.status_code < 300
        for _ in range(100):
            if (await begin()).status_code == 200:
                break
            await anyio.sleep(0.05)
        else:
            raise AssertionError("no room")
