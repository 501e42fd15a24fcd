"""What no SDK would send: a clear answer, and nothing else changes."""

import json
import socket
import struct
import threading

import pytest

import api
from wire import basic, envelope, eventually

STAT = "filesystem.Filesystem/Stat"
START = "process.Process/Start"
INPUT = "process.Process/StreamInput"
SINGLE = [
    STAT,
    "filesystem.Filesystem/MakeDir",
    "filesystem.Filesystem/Move",
    "filesystem.Filesystem/ListDir",
    "filesystem.Filesystem/Remove",
    "filesystem.Filesystem/CreateWatcher",
    "filesystem.Filesystem/GetWatcherEvents",
    "filesystem.Filesystem/RemoveWatcher",
    "process.Process/Update",
    "process.Process/SendInput",
    "process.Process/SendSignal",
    "process.Process/CloseStdin",
]
STREAMS = [START, "process.Process/Connect", "filesystem.Filesystem/WatchDir"]


@pytest.fixture(autouse=True)
def still_works(sandbox):
    yield
    assert sandbox.commands.run("echo fine").stdout == "fine\n"


@pytest.mark.parametrize("method", SINGLE)
def test_messages_that_are_none(wire, method):
    for body in [b"{", b"[]", b"5", b'"x"', b"\xff\xfe", b'{"path": 5, "process": 5, "watcherId": 5, "source": []}']:
        answer = wire.call(method, body)
        assert (answer.status, answer.error()) == (400, "invalid_argument"), body
        assert answer.json()["message"]


@pytest.mark.parametrize("method", STREAMS)
def test_streams_that_are_none(wire, method):
    bodies = [
        b"",
        b"\0",
        b"\0\0\0\0\x09{}",
        envelope(b"{"),
        envelope({"path": 5, "process": 5}),
        envelope({}, flags=2),
        envelope({}, flags=0x80),
    ]
    for body in bodies:
        answer = wire.stream(method, body)
        assert (answer.status, answer.error()) == (200, "invalid_argument"), body
    assert wire.stream(method, struct.pack(">BI", 0, 2**32 - 1)).error() == "resource_exhausted"
    assert wire.stream(method, envelope({}, flags=1)).error() == "unimplemented"


def test_other_encodings(wire):
    for kind in ["application/proto", "application/connect+json", "text/plain", ""]:
        answer = wire.call(STAT, {"path": "/"}, {"Content-Type": kind})
        assert answer.status == 415 and answer.headers["accept-post"] == "application/json"
    for kind in ["application/connect+proto", "application/json", "application/grpc"]:
        assert wire.stream(START, {}, {"Content-Type": kind}).status == 415
    assert wire.call(STAT, {"path": "/"}, {"Content-Encoding": "gzip"}).error() == "unimplemented"
    assert wire.stream(START, {}, {"Connect-Content-Encoding": "gzip"}).error() == "unimplemented"


def test_methods_that_are_none(wire):
    assert wire.call("process.Process/Nothing", {}).error() == "unimplemented"
    assert wire.call("filesystem.Filesystem/Nothing", {}).error() == "unimplemented"
    assert wire.ask("GET", "/" + STAT).status == 405
    assert wire.ask("GET", "/nothing").status == 404


def test_too_long_a_message(wire):
    assert wire.call(STAT, b'{"path": "' + b"x" * 17_000_000 + b'"}').error() == "resource_exhausted"
    assert wire.call(STAT, {"path": "/" + "x/" * 100_000}).status == 400


def test_paths(wire):
    for path in ["a\0b", "x" * 300, "/".join(["x" * 200] * 30), "~other/x"]:
        for method in [STAT, "filesystem.Filesystem/MakeDir", "filesystem.Filesystem/ListDir"]:
            answer = wire.call(method, {"path": path})
            assert answer.status in (400, 404), (method, path[:20])
        assert wire.ask("GET", "/files", query={"path": path}).status in (400, 404), path[:20]
    # However many steps up, the root is the sandbox's own.
    up = wire.call(STAT, {"path": "../" * 50 + "etc/hostname"}).json()
    outside = wire.call(STAT, {"path": "/etc/hostname"}).json()
    assert up.get("entry", {}).get("size") == outside.get("entry", {}).get("size")
    assert wire.call("filesystem.Filesystem/Remove", {"path": "/"}).status == 400


def test_headers(wire):
    for value in ["-1", "x", "99999999999", "1.5"]:
        assert wire.call(STAT, {"path": "/"}, {"Connect-Timeout-Ms": value}).error() == "invalid_argument"
    assert wire.call(STAT, {"path": "/"}, {"Connect-Timeout-Ms": "0"}).status == 200
    assert wire.call(STAT, {"path": "/"}, {"Authorization": "Basic ???"}).error() == "invalid_argument"
    assert wire.call(STAT, {"path": "/"}, basic("ghost")).error() == "unauthenticated"
    assert wire.call(STAT, {"path": "/"}, basic("x\0y")).error() in ("unauthenticated", "invalid_argument")
    assert wire.call(STAT, {"path": "/root/x"}, basic("root")).error() == "not_found"


def test_commands_that_cannot_start(wire):
    def error(process, **rest):
        return wire.stream(START, {"process": process, **rest}).error()

    assert error({}) == "invalid_argument"
    assert error({"cmd": ""}) == "invalid_argument"
    assert error({"cmd": "/no/such/program"}) == "invalid_argument"
    assert error({"cmd": "/etc/passwd"}) == "invalid_argument"
    assert error({"cmd": "a\0b"}) == "invalid_argument"
    assert error({"cmd": "true", "args": ["a\0b"]}) == "invalid_argument"
    assert error({"cmd": "true", "envs": {"": "x"}}) == "invalid_argument"
    assert error({"cmd": "true", "envs": {"A=B": "x"}}) == "invalid_argument"
    assert error({"cmd": "true", "cwd": "/etc/passwd"}) == "invalid_argument"
    assert error({"cmd": "true", "args": ["x" * 200_000]}) == "invalid_argument"
    assert error({"cmd": "true"}, pty={}) == "invalid_argument"


def test_inputs_that_are_none(sandbox, wire):
    command = sandbox.commands.run("cat > /dev/null", background=True, stdin=True)
    start = envelope({"start": {"process": {"pid": command.pid}}})
    data = envelope({"data": {"input": {"stdin": "eA=="}}})
    assert wire.stream(INPUT, start + data).error() is None
    assert wire.stream(INPUT, data).error() == "invalid_argument"
    assert wire.stream(INPUT, start + data[:-2]).error() == "invalid_argument"
    for message in [{}, {"data": {}}, {"data": {"input": {"stdin": "?"}}}, {"start": {}, "data": {}}, {"x": 1}]:
        assert wire.stream(INPUT, start + envelope(message)).error() == "invalid_argument", message
    assert wire.stream(INPUT, start + struct.pack(">BI", 0, 1 << 30)).error() == "resource_exhausted"
    for given in [{"stdin": "eA==", "pty": "eA=="}, {}, {"stdin": 5}]:
        body = {"process": {"pid": command.pid}, "input": given}
        assert wire.call("process.Process/SendInput", body).error() == "invalid_argument"
    for process in [{}, {"pid": -1}, {"pid": "x"}, {"pid": 2**40}, []]:
        body = {"process": process, "input": {"stdin": "eA=="}}
        assert wire.call("process.Process/SendInput", body).error() == "invalid_argument", process
    command.kill()


def test_uploads_that_are_none(sandbox, wire):
    query = {"path": "refused"}
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    octets = {"Content-Type": "application/octet-stream"}
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="refused"\r\n\r\ncontent'
    refused = [
        ({}, b"x", query),
        ({"Content-Type": "application/json"}, b"{}", query),
        ({"Content-Type": "multipart/form-data"}, b"x", query),
        (form, b"", query),
        (form, b"nonsense", query),
        (form, part, None),
        (form, b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n', None),
        (form, b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n', query),
        (octets, b"x", None),
        (octets, b"x", {"path": "a\0b"}),
    ]
    for headers, body, query in refused:
        answer = wire.ask("POST", "/files", body, headers, query=query)
        assert answer.status == 400 and answer.json()["message"], (headers, body)
    assert not sandbox.files.exists("refused")


def test_an_upload_that_breaks_off_leaves_what_was_there(sandbox, wire):
    sandbox.files.write("whole", "whole")
    with socket.create_connection((wire.address.hostname, wire.address.port)) as connection:
        lines = ["POST /files?path=whole HTTP/1.1", "Host: x", "Content-Type: application/octet-stream"]
        lines += [f"{name}: {value}" for name, value in wire.headers.items()] + ["Content-Length: 1000000", "", ""]
        connection.sendall("\r\n".join(lines).encode() + b"x" * 500_000)
    assert sandbox.files.read("whole") == "whole"
    eventually(lambda: not [entry for entry in sandbox.files.list(".") if entry.name.startswith(".sloplet")])


def test_many_at_once(wire):
    answers = []

    def ask(number):
        command = {"process": {"cmd": "/bin/echo", "args": [str(number)]}}
        answers.append(wire.stream(START, command).messages()[-1])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [(2, {})] * 40


def test_protobuf_leaves_a_choice(wire):
    """Names in either spelling, numbers as strings, unknown fields."""
    assert wire.call("filesystem.Filesystem/ListDir", {"path": "/", "depth": "1", "unknown": [1]}).status == 200
    made = wire.call("filesystem.Filesystem/CreateWatcher", {"path": "/", "include_entry": True}).json()
    assert wire.call("filesystem.Filesystem/GetWatcherEvents", {"watcher_id": made["watcherId"]}).status == 200
    assert wire.call("filesystem.Filesystem/RemoveWatcher", {"watcherId": made["watcherId"]}).status == 200
    assert wire.call("process.Process/List", b"").status == 200
    assert json.loads(wire.call(STAT, {"path": "/"}).body)["entry"]["size"].isdigit()


@pytest.mark.parametrize(
    "asked",
    [
        {"envVars": {"A B": "1"}},
        {"envVars": {"": "1"}},
        {"envVars": {"A": "x\0y"}},
        {"envVars": {"A": "x" * 140_000}},
        {"timeout": -1},
        {"timeout": 10**12},
        {"templateID": "x" * 600},
        {"templateID": 1},
        {"metadata": {"sloplet.isolation": "none"}},
        {"metadata": {"sloplet.driver": "none"}},
        {"volumeMounts": [{"name": "v", "path": "relative"}]},
        {"network": {"allowOut": ["a b"]}},
    ],
    ids=lambda asked: str(asked)[:60],
)
def test_a_sandbox_that_makes_no_sense(asked):
    status, said = api.call("POST", "/v2/sandboxes", {"templateID": "base", **asked})
    assert (status, said["code"]) == (400, 400), said
    assert 0 < len(said["message"]) < 400 and "\n" not in said["message"], said


@pytest.mark.parametrize(
    "process",
    [
        {"cmd": ""},
        {"cmd": "tr\0ue"},
        {"cmd": "true", "args": ["\0"]},
        {"cmd": "true", "envs": {"A B": "1"}},
        {"cmd": "true", "envs": {"": "1"}},
        {"cmd": "true", "cwd": "/a\0b"},
        {"cmd": "no-such-program"},
    ],
    ids=lambda process: str(process)[:60],
)
def test_a_process_that_makes_no_sense(wire, process):
    assert wire.stream(START, {"process": process}).error() == "invalid_argument"
