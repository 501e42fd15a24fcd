"""Network rules as E2B's own Python package gives them, in front of a world of the test's own. SERVED_INTERNET says whether
the server gives sandboxes the internet that the package asks for unless told otherwise."""

import json
import os

import httpx
import pytest
from e2b import Sandbox, SandboxException

INTERNET = bool(os.environ["SERVED_INTERNET"])
PLACES = {"name": "http://example.com/", "other": "http://example.org/", "address": "http://45.33.10.2/",
          "private": "http://10.20.0.5/", "metadata": "http://169.254.169.254/"}


def reached(sandbox):
    """The places that answer."""
    script = "; ".join(f"echo {name} $(curl -s -m 30 -o /dev/null -w '%{{http_code}}' {url})" for name, url in PLACES.items())
    lines = sandbox.commands.run(script).stdout.splitlines()
    return {line.split()[0] for line in lines if line.split()[1] == "200"}


def headers_at(sandbox, url):
    """What arrives of a request that says something of its own."""
    told = sandbox.commands.run(f"curl -sS -m 30 -H 'X-Token: own' {url}/headers").stdout
    return {name.lower(): value for name, value in json.loads(told).items()}


def setting(host, **headers):
    return {host: [{"transform": {"headers": headers}}]}


@pytest.fixture
def make():
    made = []

    def create(**options):
        made.append(Sandbox.create(timeout=300, **options))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.kill()


def test_what_is_asked_for_unless_told_otherwise(make):
    assert reached(make()) == ({"name", "other", "address"} if INTERNET else set())
    assert reached(make(allow_internet_access=True)) == ({"name", "other", "address"} if INTERNET else set())


def test_no_internet(make):
    assert reached(make(allow_internet_access=False)) == set()


def test_rules(make):
    sandbox = make(network={"allow_out": ["example.com", "45.33.10.2"], "deny_out": ["0.0.0.0/0"]})
    assert reached(sandbox) == {"name", "address"}
    assert sandbox.get_info().network["allow_out"] == ["example.com", "45.33.10.2"]


def test_denied_networks(make):
    sandbox = make(network={"allow_out": ["0.0.0.0/0"], "deny_out": ["45.33.10.2/32"]})
    assert reached(sandbox) == {"name"}


def test_rules_of_a_running_sandbox(make):
    sandbox = make(network={"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]})
    assert reached(sandbox) == {"name"}
    sandbox.update_network({"allow_out": ["example.org"], "deny_out": ["0.0.0.0/0"]})
    assert reached(sandbox) == {"other"}
    sandbox.update_network({"allow_out": [], "deny_out": ["0.0.0.0/0"]})
    assert reached(sandbox) == set()


def test_rules_outlive_a_pause(make):
    sandbox = make(network={"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]})
    sandbox.beta_pause()
    assert reached(Sandbox.connect(sandbox.sandbox_id)) == {"name"}


def test_headers_are_set_on_the_way_out(make):
    names = {"allow_out": ["example.com", "example.org"], "deny_out": ["0.0.0.0/0"]}
    sandbox = make(network={"rules": setting("example.com", **{"X-Token": "set", "X-More": "1"}), **names})
    for scheme in ("https", "http"):
        told = headers_at(sandbox, f"{scheme}://example.com")
        assert (told["x-token"], told["x-more"], told["host"]) == ("set", "1", "example.com")
    told = headers_at(sandbox, "http://example.org")
    assert told["x-token"] == "own" and "x-more" not in told
    sandbox.update_network({"rules": setting("example.org", **{"X-Token": "changed"}), **names})
    assert headers_at(sandbox, "http://example.org")["x-token"] == "changed"
    assert headers_at(sandbox, "http://example.com")["x-token"] == "own"
    sandbox.beta_pause()
    sandbox = Sandbox.connect(sandbox.sandbox_id)
    assert headers_at(sandbox, "https://example.org")["x-token"] == "changed"
    assert sandbox.get_info().network["rules"] == setting("example.org", **{"X-Token": "changed"})


def test_a_host_with_headers_is_not_allowed_by_that(make):
    assert reached(make(network={"rules": setting("example.com", **{"X-Token": "set"}), "deny_out": ["0.0.0.0/0"]})) == set()


def test_rules_that_cannot_hold_are_refused(make):
    for network in [{"rules": setting("example.com", Host="example.org")}, {"rules": setting("45.33.10.2", X="1")},
                    {"egress_proxy": {"address": "example.com:1080"}}]:
        with pytest.raises(SandboxException):
            make(network=network)
    # Its programs trust nobody's word for another host.
    with pytest.raises(SandboxException, match="make it anew"):
        make().update_network({"rules": setting("example.com", **{"X-Token": "set"})})


def test_a_sandboxs_token_opens_no_other(make):
    """Probe 62."""
    one, two = make(secure=True), make(secure=True)

    def files(sandbox, token):
        headers = {"X-Access-Token": token, "E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
        return httpx.get(f"{os.environ['E2B_SANDBOX_URL']}/files", params={"path": "/etc/hostname", "username": "user"}, headers=headers).status_code

    tokens = [sandbox._envd_access_token for sandbox in (one, two)]
    assert files(one, tokens[0]) == 200 and files(two, tokens[1]) == 200
    assert files(one, tokens[1]) in (401, 403, 404) and files(two, tokens[0]) in (401, 403, 404)
