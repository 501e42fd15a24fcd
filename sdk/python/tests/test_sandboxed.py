"""Functions whose body runs in a sandbox."""

import json
import os.path as paths

import pytest
from sloplet import InvalidRequestError, RemoteError, Sandbox, sandboxed
from sloplet._values import decode, dumps, encode, loads

LIMIT = 3


@sandboxed
def inside(a, b=2, *more, **named):
    """Says where it is."""
    import os

    return {"sum": a + b, "more": more, "named": named, "cwd": os.getcwd(), "json": json.dumps([1]), "join": paths.join("a", "b")}


@sandboxed(image="python", ttl="5m")
def fails(text: "str") -> int:
    print("before")
    raise ValueError(text)


@sandboxed
def uses_a_global():
    return LIMIT


@sandboxed
async def waits(seconds):
    import asyncio

    await asyncio.sleep(seconds)
    return b"bytes", {1, 2}


def test_it_runs_inside_and_its_value_comes_back(capsys):
    value = inside(1, 5, (6, b"x"), key=[None])
    assert value["sum"] == 6 and value["more"] == ((6, b"x"),) and value["named"] == {"key": [None]}
    assert value["cwd"] == "/home/sandbox/app" and value["join"] == "a/b" and inside.__doc__ == "Says where it is."
    with pytest.raises(RemoteError, match="ValueError: no") as error:
        fails("no")
    assert 'raise ValueError(text)' in error.value.traceback and capsys.readouterr().out == "before\n"


async def test_one_that_waits():
    assert await waits(0.01) == (b"bytes", {1, 2})


def test_it_can_share_a_sandbox(sandbox):
    @sandboxed(sandbox=sandbox)
    def count():
        import os

        with open("/tmp/calls", "a") as file:
            file.write("x")
        return os.path.getsize("/tmp/calls")

    assert [count(), count()] == [1, 2]
    assert sandbox.exec("ls -A /tmp/.sandboxed").exit_code != 0, "nothing of it is left"


def test_what_cannot_be_sent_is_refused_before_anything_runs():
    with pytest.raises(InvalidRequestError, match="the global LIMIT"):
        uses_a_global()
    outer = 1

    @sandboxed
    def uses_another():
        return outer

    with pytest.raises(InvalidRequestError, match="uses outer of the function around it"):
        uses_another()
    with pytest.raises(TypeError, match="a object cannot be passed"):
        inside(object())
    with pytest.raises(InvalidRequestError, match="def"):
        sandboxed(lambda: 1)()


def test_a_hostile_value_is_no_value(sandbox):
    @sandboxed(sandbox=sandbox)
    def lies():
        import atexit

        atexit.register(lambda: open("/tmp/.sandboxed/value.json", "w").write('{"value": {"eval": "x"}}'))

    with pytest.raises(Exception, match="no value"):
        lies()


def test_values_survive():
    for value in (None, True, 1 << 80, 1.5, float("inf"), "ä", b"\xff", bytearray(b"x"), (1, [2, {3: {4}}]), {(1,): None}, 1j, frozenset()):
        assert loads(dumps(value)) == value and type(loads(dumps(value))) is type(value)
    for bad in ({"a": 1, "b": 2}, {"x": 1}):
        with pytest.raises(ValueError):
            decode(bad)
    with pytest.raises(TypeError):
        encode(Sandbox)
