"""Sandboxes: made, looked at, prolonged, paused, resumed, forked, ended."""

import datetime
import time
import uuid

import httpx
import pytest
from e2b import (
    AsyncSandbox,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxState,
)

import api


@pytest.fixture
def sandbox():
    sandbox = Sandbox.create(timeout=120)
    yield sandbox
    sandbox.kill()


def test_a_sandbox_tells_what_it_is(sandbox):
    made = Sandbox.create(
        timeout=100,
        metadata={"team": "a", "ümläut %": "x=y&z +"},
        envs={"GREETING": "hello"},
        network={"allow_out": ["1.1.1.1"], "deny_out": ["0.0.0.0/0"]},
        allow_internet_access=False,
    )
    try:
        info = made.get_info()
        assert info.sandbox_id == made.sandbox_id
        assert info.metadata == {"team": "a", "ümläut %": "x=y&z +"}
        assert info.state == SandboxState.RUNNING
        assert info.template_id == "base"
        assert info.cpu_count >= 1 and info.memory_mb >= 128
        left = info.end_at - datetime.datetime.now(datetime.timezone.utc)
        assert 60 < left.total_seconds() <= 100
        assert info.allow_internet_access is False
        assert info.network == {"allow_out": ["1.1.1.1"], "deny_out": ["0.0.0.0/0"]}
        assert made.commands.run("echo $GREETING").stdout == "hello\n"
    finally:
        assert made.kill() is True
    assert made.kill() is False
    with pytest.raises(NotFoundException):
        made.get_info()


@pytest.mark.parametrize(
    ("wanted", "own_kernel"),
    [({"sloplet.isolation": "gvisor"}, True), ({"sloplet.driver": "crun"}, False), ({"sloplet.driver": "namespaces"}, False)],
)
def test_metadata_choose_the_wall(sandbox, wanted, own_kernel):
    made = Sandbox.create(timeout=120, metadata={"team": "a", **wanted})
    try:
        assert made.get_info().metadata == {"team": "a", **wanted}
        kernels = [one.commands.run("uname -v").stdout for one in (made, sandbox)]
        assert (kernels[0] != kernels[1]) is own_kernel
        made.files.write("kept", "text")
        assert made.commands.run("cat kept").stdout == "text"
    finally:
        made.kill()


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"sloplet.isolation": "paper"}, "unknown isolation 'paper'"),
        ({"sloplet.driver": "kata"}, "kata"),
        ({"sloplet.driver": "no-such"}, "no driver 'no-such'"),
        ({"sloplet.isolation": "gvisor", "sloplet.driver": "crun"}, "not both"),
    ],
)
def test_a_wall_that_cannot_be_is_refused(wanted, said):
    with pytest.raises(SandboxException, match=said):
        Sandbox.create(timeout=120, metadata=wanted)


def test_the_timeout_is_set_and_connecting_never_shortens_it(sandbox):
    sandbox.set_timeout(1000)
    long = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert sandbox.get_info().end_at == long
    sandbox.set_timeout(50)
    assert sandbox.get_info().end_at < long
    sandbox.set_timeout(0)
    for _ in range(100):
        if not sandbox.is_running():
            break
        time.sleep(0.1)
    assert not sandbox.is_running()


def test_a_paused_sandbox_goes_on_where_it_stopped(sandbox):
    process = sandbox.commands.run("sleep 1000", background=True)
    assert sandbox.pause() is True
    assert sandbox.pause() is False
    assert sandbox.get_info().state == SandboxState.PAUSED
    assert not sandbox.is_running()
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.get_info().state == SandboxState.RUNNING
    assert process.pid in [one.pid for one in again.commands.list()]


def test_without_memory_the_files_survive_a_pause_and_the_processes_do_not(sandbox):
    process = sandbox.commands.run("sleep 1000", background=True)
    sandbox.files.write("/home/user/kept", "yes")
    assert sandbox.pause(keep_memory=False) is True
    assert sandbox.pause(keep_memory=False) is False
    assert sandbox.get_info().state == SandboxState.PAUSED
    sandbox.connect()
    assert sandbox.files.read("/home/user/kept") == "yes"
    assert process.pid not in [one.pid for one in sandbox.commands.list()]


def test_forks_have_the_files_and_lives_of_their_own(sandbox):
    sandbox.files.write("/home/user/state", "before")
    forks = sandbox.fork(count=3, timeout=60)
    try:
        assert len({fork.sandbox_id for fork in forks} | {sandbox.sandbox_id}) == 4
        forks[0].files.write("/home/user/state", "changed")
        assert [fork.files.read("/home/user/state") for fork in forks[1:]] == ["before"] * 2
        assert sandbox.files.read("/home/user/state") == "before"
    finally:
        for fork in forks:
            fork.kill()
    assert sandbox.is_running()


def test_an_idempotency_key_makes_one_sandbox():
    headers = {"idempotency-key": uuid.uuid4().hex}
    bodies = [api.call("POST", "/v2/sandboxes", {"templateID": "base"}, headers) for _ in range(2)]
    assert [status for status, _ in bodies] == [201, 201]
    first, second = (body["sandboxID"] for _, body in bodies)
    assert first == second
    status, _ = api.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 7}, headers)
    assert status == 409
    Sandbox.kill(first)


def test_metrics_are_of_now(sandbox):
    metric = sandbox.get_metrics()[0]
    assert metric.cpu_count >= 1 and 0 < metric.mem_used <= metric.mem_total
    assert 0 <= metric.disk_used <= metric.disk_total
    hour = datetime.timedelta(hours=1)
    now = datetime.datetime.now(datetime.timezone.utc)
    assert sandbox.get_metrics(start=now - 2 * hour, end=now - hour) == []
    status, several = api.call("GET", f"/sandboxes/metrics?sandbox_ids={sandbox.sandbox_id},unknown")
    assert status == 200 and list(several["sandboxes"]) == [sandbox.sandbox_id]


def test_metrics_are_of_a_span_of_time(own_sandbox):
    own_sandbox.commands.run("while :; do :; done", background=True)
    began = datetime.datetime.now(datetime.timezone.utc)
    deadline = time.monotonic() + 60
    while len(metrics := own_sandbox.get_metrics(start=began)) < 3:
        assert time.monotonic() < deadline, metrics
        time.sleep(0.5)
    times = [metric.timestamp for metric in metrics]
    assert times == sorted(times) and times[0] < times[1]
    assert metrics[1].cpu_used_pct > 1
    assert all(metric.mem_total == metrics[0].mem_total for metric in metrics)


def test_new_rules_replace_the_old(sandbox):
    sandbox.update_network({"deny_out": ["8.8.8.8"]})
    assert sandbox.get_info().network == {"deny_out": ["8.8.8.8"]}
    sandbox.update_network({"allow_out": ["example.com"]})
    assert sandbox.get_info().network == {"allow_out": ["example.com"]}
    sandbox.update_network({})
    assert not sandbox.get_info().network


def test_what_is_not_public_stays_out_of_reach_whatever_the_rules_say(sandbox):
    sandbox.update_network({"allow_out": ["0.0.0.0/0"], "allow_internet_access": True})
    for address in ["198.51.100.1", "169.254.169.254", "10.0.0.1"]:
        look = f"curl -s -m 20 -w '%{{http_code}}' http://{address}/"
        answer = sandbox.commands.run(f"{look}; true").stdout
        assert answer.endswith("403") and "sloplet" in answer, (address, answer)


def test_older_calls_work_too(sandbox):
    path = f"/sandboxes/{sandbox.sandbox_id}"
    status, made = api.call("POST", "/sandboxes", {"templateID": "base", "timeout": 60})
    assert status == 201 and made["clientID"] and made["envdVersion"] and made["envdAccessToken"]
    assert api.call("DELETE", f"/sandboxes/{made['sandboxID']}")[0] == 204
    assert api.call("POST", f"{path}/refreshes", {"duration": 60})[0] == 204
    assert api.call("POST", f"{path}/resume", {"timeout": 60})[0] == 409
    assert api.call("POST", f"{path}/pause", {})[0] == 204
    assert api.call("POST", f"{path}/resume", {"timeout": 60})[0] == 201
    assert sandbox.sandbox_id in [one["sandboxID"] for one in api.call("GET", "/sandboxes")[1]]
    assert api.call("GET", f"{path}/logs")[1]["logEntries"]
    assert api.call("GET", f"/v2{path}/logs")[1]["logs"]


BAD = [
    ("POST", "/v2/sandboxes", b"{", 400),
    ("POST", "/v2/sandboxes", b"[]", 400),
    ("POST", "/v2/sandboxes", b'{"timeout": "x"}', 400),
    ("POST", "/v2/sandboxes", b'{"timeout": -1}', 400),
    ("POST", "/v2/sandboxes", b'{"timeout": 99999999999}', 400),
    ("POST", "/v2/sandboxes", b'{"metadata": {"a": 1}}', 400),
    ("POST", "/v2/sandboxes", b'{"envVars": {"A=B": "1"}}', 400),
    ("POST", "/v2/sandboxes", b'{"templateID": "nothing-like-it"}', 404),
    ("POST", "/v2/sandboxes", b'{"templateID": "/etc"}', 404),
    ("POST", "/v2/sandboxes", b'{"templateID": "../../etc"}', 404),
    ("POST", "/v2/sandboxes", b'{"templateID": "snapshot-x"}', 404),
    ("POST", "/v2/sandboxes", b'{"volumeMounts": [{"name": "none", "path": "/v"}]}', 404),
    ("POST", "/v2/sandboxes", b'{"network": {"denyOut": ["example.com"]}}', 400),
    ("POST", "/v2/sandboxes", b'{"iam": {"tokens": {"a": {"audience": "b", "tokenType": "c"}}}}', 400),
    ("POST", "/v2/sandboxes", b" " * (5 << 20), 413),
    ("GET", "/sandboxes/unknown", None, 404),
    ("GET", "/sandboxes/..%2f..%2fetc", None, 404),
    ("GET", "/sandboxes/%ff", None, 400),
    ("POST", "/sandboxes/unknown/pause", b"{}", 404),
    ("POST", "/sandboxes/unknown/connect", b"{}", 404),
    ("POST", "/sandboxes/unknown/timeout", b"{}", 400),
    ("POST", "/sandboxes/unknown/fork", b'{"count": 0}', 400),
    ("POST", "/sandboxes/unknown/fork", b'{"count": -1}', 400),
    ("GET", "/v2/sandboxes?limit=0", None, 400),
    ("GET", "/v2/sandboxes?limit=x", None, 400),
    ("GET", "/v2/sandboxes?state=asleep", None, 400),
    ("GET", "/v2/sandboxes?startedAfter=yesterday", None, 400),
    ("GET", "/v2/sandboxes?nextToken=%21", None, 400),
    ("GET", "/sandboxes/metrics", None, 400),
    ("PATCH", "/v2/sandboxes", None, 405),
]


@pytest.mark.parametrize("method, path, body, status", BAD)
def test_nonsense_is_refused_in_the_form_that_clients_parse(method, path, body, status):
    answer = httpx.request(method, api.URL + path, content=body, headers=api.HEADERS)
    assert answer.status_code == status, answer.text
    error = answer.json()
    assert error["code"] == status and error["message"]


def test_a_key_is_needed_and_must_be_right():
    for headers in [{}, {"X-API-KEY": "e2b_" + "0" * 40}]:
        answer = httpx.get(api.URL + "/v2/sandboxes", headers=headers)
        assert answer.status_code == 401 and answer.json()["code"] == 401


def test_an_unknown_template_is_an_error():
    with pytest.raises(SandboxException, match="was not found"):
        Sandbox.create("nothing-like-it")


@pytest.mark.asyncio
async def test_the_asynchronous_client_does_the_same():
    sandbox = await AsyncSandbox.create(metadata={"a": "b"}, timeout=60)
    try:
        assert (await sandbox.get_info()).metadata == {"a": "b"}
        assert await sandbox.pause() is True
        await sandbox.connect()
        assert await sandbox.is_running()
        forks = await sandbox.fork()
        assert await forks[0].kill() is True
    finally:
        assert await sandbox.kill() is True
