"""get_host() without a domain: the name leads to this server, and never to E2B's own."""

import http.client
import os
import shutil
import subprocess
from urllib.parse import urlsplit

import pytest
from e2b import AsyncSandbox, Sandbox

import api
from wire import eventually

SERVER = urlsplit(os.environ["E2B_API_URL"])
SERVE = "cd /tmp && echo of-the-sandbox > page && exec python3 -m http.server 3000"


def ask(host, headers):
    """As a client does for which *.localhost is this machine: RFC 6761 asks for that, not every resolver does it."""
    name, _, port = host.partition(":")
    assert name.endswith(".localhost"), host
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
    try:
        connection.request("GET", "/page", headers={"Host": host, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def serving():
    made = Sandbox.create(timeout=120)
    made.commands.run(SERVE, background=True)
    token = {"X-Access-Token": made._envd_access_token}
    eventually(lambda: ask(made.get_host(3000), token)[0] == 200)
    yield made, token
    made.kill()


def test_the_host_of_a_port_reaches_the_server_inside(serving):
    sandbox, token = serving
    host = sandbox.get_host(3000)
    assert host == f"3000-{sandbox.sandbox_id}.localhost:{SERVER.port}"
    assert ask(host, token) == (200, "of-the-sandbox\n")
    # It names the sandbox, and opens nothing.
    assert ask(host, {})[0] == 401


def test_curl_finds_it_by_itself(serving):
    sandbox, token = serving
    if not shutil.which("curl"):
        pytest.skip("no curl")
    header = f"X-Access-Token: {token['X-Access-Token']}"
    url = f"http://{sandbox.get_host(3000)}/page"
    assert subprocess.run(["curl", "-sS", "-H", header, url], capture_output=True, text=True).stdout == "of-the-sandbox\n"


def test_every_answer_with_a_sandbox_tells_the_same(serving):
    sandbox, _ = serving
    assert Sandbox.connect(sandbox.sandbox_id).get_host(80) == sandbox.get_host(80)
    assert sandbox.get_info().sandbox_domain == f"localhost:{SERVER.port}"
    # What the caller calls the server is what the names are below.
    told = lambda host: api.call("GET", f"/sandboxes/{sandbox.sandbox_id}", headers={"Host": host})[1]["domain"]
    assert told("api.sandbox.example.com") == "sandbox.example.com"
    assert told("box.example.com:8443") == "box.example.com:8443"
    assert "e2b" not in told("192.0.2.7:7070")


def test_the_asynchronous_client_is_told_too(in_async):
    async def host(sandbox: AsyncSandbox):
        return sandbox.get_host(3000)

    assert in_async(host).endswith(f".localhost:{SERVER.port}")
