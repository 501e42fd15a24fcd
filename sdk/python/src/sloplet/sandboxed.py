"""`@sandboxed`: a function whose body runs in a sandbox.

Its source is sent, not its memory: the body sees its arguments, what it imports, and the modules that the file around it
imports by name. It does not see other globals or the variables of a function around it: that is an error when it is called.
Arguments and the value are numbers, text, bytes, lists, tuples, sets and dicts. What it prints is printed; what it raises
comes back as `RemoteError`.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import json
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast, overload

from . import _values
from ._async.sandbox import AsyncSandbox
from ._sync.sandbox import Sandbox
from .errors import InvalidRequestError, RemoteError, SandboxError
from .types import CommandResult

P = ParamSpec("P")
T = TypeVar("T")

#: Where things are inside.
FOLDER = "/tmp/.sandboxed"

#: Bytes of a value: it is held in memory.
LARGEST = 64 * 1024 * 1024

PROGRAM = """
import sys, json, traceback
sys.path.insert(0, {folder!r})
import values
with open({folder!r} + "/arguments.json") as file:
    arguments, options = values.loads(file.read())
said = {{}}
try:
    import body
    value = body.{name}(*arguments, **options)
    if {is_async!r}:
        import asyncio
        value = asyncio.run(value)
    said["value"] = values.encode(value)
except BaseException as error:
    said = {{"error": [type(error).__name__, str(error), traceback.format_exc()]}}
with open({folder!r} + "/value.json", "w") as file:
    json.dump(said, file)
"""


@overload
def sandboxed(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def sandboxed(
    *, sandbox: Sandbox | AsyncSandbox | None = None, timeout: float = 120, **options: Any
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def sandboxed(
    function: Callable[..., Any] | None = None,
    /,
    *,
    sandbox: Sandbox | AsyncSandbox | None = None,
    timeout: float = 120,
    **options: Any,
) -> Any:
    """Runs the function's body in a sandbox and returns its value.

    Each call gets a sandbox of its own, made with `options` (as `Sandbox.create` takes them) and deleted afterwards; or all
    run in `sandbox`. An `async def` is awaited, and needs an `AsyncSandbox` where one is given.
    """
    if function is None:
        return functools.partial(_wrap, sandbox=sandbox, timeout=timeout, options=options)
    return _wrap(function, sandbox, timeout, options)


def _wrap(
    function: Callable[..., Any], sandbox: Sandbox | AsyncSandbox | None, timeout: float, options: dict[str, Any]
) -> Callable[..., Any]:
    options = {"image": "python", **options}
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waiting(*args: Any, **kwargs: Any) -> Any:
            files = _files(function, args, kwargs)
            own = sandbox is None
            there = cast(AsyncSandbox, sandbox) or await AsyncSandbox.create(**options)
            try:
                for name, text in files.items():
                    await there.filesystem.write_file(f"{FOLDER}/{name}", text)
                done = await there.exec(["python3", f"{FOLDER}/main.py"], timeout=timeout)
                _print(done)
                size = await there.filesystem.get_size(f"{FOLDER}/value.json") if done.success else 0
                return _value(done, await there.filesystem.read_file(f"{FOLDER}/value.json") if _fits(size) else "")
            finally:
                await (there.delete() if own else there.filesystem.rm(FOLDER, recursive=True))

        return waiting

    @functools.wraps(function)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        files = _files(function, args, kwargs)
        own = sandbox is None
        there = cast(Sandbox, sandbox) or Sandbox.create(**options)
        try:
            for name, text in files.items():
                there.filesystem.write_file(f"{FOLDER}/{name}", text)
            done = there.exec(["python3", f"{FOLDER}/main.py"], timeout=timeout)
            _print(done)
            size = there.filesystem.get_size(f"{FOLDER}/value.json") if done.success else 0
            return _value(done, there.filesystem.read_file(f"{FOLDER}/value.json") if _fits(size) else "")
        finally:
            there.delete() if own else there.filesystem.rm(FOLDER, recursive=True)

    return blocking


def _files(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    """What is written into the sandbox."""
    program = PROGRAM.format(folder=FOLDER, name=function.__name__, is_async=inspect.iscoroutinefunction(function))
    return {
        "body.py": source(function),
        "values.py": Path(_values.__file__).read_text(),
        "arguments.json": _values.dumps((list(args), kwargs)),
        "main.py": program,
    }


def source(function: Callable[..., Any]) -> str:
    """A file that defines the function, without its decorators, and imports what it names of modules."""
    if function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars)
        raise InvalidRequestError(f"{function.__name__} uses {names} of the function around it", hint="pass it as an argument")
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InvalidRequestError(f"the source of {function.__name__} is not known", hint="define it in a file") from error
    tree = ast.parse(text)
    definition = tree.body[0]
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise InvalidRequestError("only functions made with 'def' can be sandboxed")
    definition.decorator_list = []
    imports = ["from __future__ import annotations"]
    for name, value in _globals(function).items():
        if isinstance(value, types.ModuleType):
            imports.append(f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}")
        elif getattr(value, "__wrapped__", value) is not function:
            hint = "pass it as an argument, or import it in the function's body"
            raise InvalidRequestError(f"{function.__name__} uses the global {name}, which is not there inside", hint=hint)
    return "\n".join([*imports, "", ast.unparse(definition), ""])


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    """Globals that the body uses, functions within it included; annotations are not looked at."""
    found: dict[str, Any] = {}
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        waiting += [one for one in code.co_consts if isinstance(one, types.CodeType)]
        names = {str(one.argval) for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        found |= {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    return found


def _fits(size: int) -> bool:
    if size > LARGEST:
        raise SandboxError(f"the value is larger than {LARGEST} bytes", hint="write it to a file and download that")
    return size > 0


def _print(done: CommandResult) -> None:
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)


def _value(done: CommandResult, text: str) -> Any:
    done.check()
    try:
        said = json.loads(text)
        if "error" in said:
            type_name, message, traceback = (str(part) for part in said["error"])
            raise RemoteError(type_name, message, traceback)
        return _values.decode(said["value"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SandboxError("what came back is no value: did the function's body change the files in /tmp?") from error
