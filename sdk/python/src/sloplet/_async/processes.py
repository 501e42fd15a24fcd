"""Commands and processes inside a sandbox."""

from __future__ import annotations

import base64
import fnmatch
import json
import uuid
from collections.abc import AsyncIterator, Mapping

from .. import _platform_async as platform
from .._output import Decoder, result
from .._units import Duration, Size, duration, seconds, size
from ..errors import CommandTimeoutError, NotFoundError, SandboxError, SandboxNotFoundError
from ..types import Command, CommandResult, Json, ProcessInfo, StreamEvent
from .client import AsyncClient, quote

#: How long a process waits for a reader that lost its connection before its output is dropped.
HOLD = "60s"

#: Most bytes of each output that one answer can hold.
LARGEST_OUTPUT = "16MiB"

#: Bytes of input beyond which it goes as it is, not within JSON.
MUCH = 1024 * 1024

Infos = list[ProcessInfo]


async def run(
    client: AsyncClient,
    sandbox: str,
    command: Command,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout: Duration | None = 120,
    user: str | None = None,
    stdin: str | bytes | None = None,
    output_limit: Size = LARGEST_OUTPUT,
) -> CommandResult:
    """Runs a command to its end."""
    said: Json = {**_command(command, env, cwd, user), "output_limit": size(output_limit)}
    wait = 86_400.0 * 365 if timeout is None else seconds(timeout)
    said["timeout"] = duration(wait)
    path, data = f"/sandboxes/{sandbox}/exec", stdin.encode() if isinstance(stdin, str) else stdin
    if data is not None and len(data) > MUCH:
        kind, body = _form(said, data)
        return result(await client.ask("POST", path, body=body, headers={"Content-Type": kind}, timeout=wait + 60))
    if data is not None:
        said["stdin_base64"] = base64.b64encode(data).decode()
    return result(await client.ask("POST", path, json=said, timeout=wait + 60))


def _form(said: Json, stdin: bytes) -> tuple[str, bytes]:
    """A command and its input as a form: its type and its bytes."""
    line = uuid.uuid4().hex
    part = f'--{line}\r\nContent-Disposition: form-data; name="{{}}"\r\n\r\n'
    start = part.format("exec") + json.dumps(said) + "\r\n" + part.format("stdin")
    return f"multipart/form-data; boundary={line}", start.encode() + stdin + f"\r\n--{line}--\r\n".encode()


def _command(command: Command, env: Mapping[str, str] | None, cwd: str | None, user: str | None) -> Json:
    said: Json = {"command": command if isinstance(command, str) else list(command)}
    if env:
        said["env"] = dict(env)
    if cwd:
        said["cwd"] = cwd
    if user:
        said["user"] = user
    return said


class AsyncProcess:
    """A process that runs in the background, whatever happens to this program."""

    def __init__(self, client: AsyncClient, sandbox: str, pid: int, command: Command = "") -> None:
        self._client, self._sandbox = client, sandbox
        self.pid, self.command = pid, command

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pid={self.pid}, command={self.command!r})"

    @property
    def _path(self) -> str:
        return f"/sandboxes/{self._sandbox}/processes/{self.pid}"

    async def info(self) -> ProcessInfo:
        """What it is and whether it runs."""
        return ProcessInfo.of(await self._client.ask("GET", self._path))

    async def output(self, offset: int = 0, *, follow: bool = True) -> AsyncIterator[StreamEvent]:
        """What it wrote and writes, from an offset on, to its end. A broken connection is taken up again where it was."""
        decoder = Decoder()
        params: Json = {"offset": offset, "follow": follow}
        async for event in self._client.events(f"{self._path}/output", params, resumes=follow):
            told = decoder.event(event)
            if told is not None:
                yield told

    async def logs(self, tail: int | None = None) -> str:
        """What is kept of its output, standard error included."""
        async with self._client.stream("GET", f"{self._path}/logs", params={"tail": tail}) as response:
            return (await response.aread()).decode("utf-8", "replace")

    async def wait(self, timeout: Duration | None = None) -> int:
        """Waits for its end; its exit code."""
        left = None if timeout is None else seconds(timeout)
        pause = 0.02
        while True:
            found = await self.info()
            if found.status != "running":
                return -1 if found.exit_code is None else found.exit_code
            if left is not None and left <= 0:
                nothing = CommandResult("", "", -1, timed_out=True)
                raise CommandTimeoutError(f"process {self.pid} still runs after {timeout}", nothing)
            pause = min(pause * 1.5, 1.0, pause if left is None else max(left, 0.001))
            await platform.sleep(pause)
            left = None if left is None else left - pause

    async def write(self, data: str | bytes, *, close: bool = False) -> None:
        """Writes to its standard input (started with `stdin=True`)."""
        body = data.encode() if isinstance(data, str) else data
        await self._client.ask("POST", f"{self._path}/stdin", params={"close": close}, body=body)

    async def close_stdin(self) -> None:
        """Says that no more input follows."""
        await self.write(b"", close=True)

    async def signal(self, signal: str, *, group: bool = True) -> None:
        """Sends a signal: `SIGINT`, `SIGTERM` …"""
        await self._client.ask("POST", f"{self._path}/signal", json={"signal": _signal(signal), "group": group})

    async def kill(self, signal: str = "SIGKILL") -> bool:
        """Ends it and its process group. `False` if it had ended."""
        try:
            await self._client.ask("DELETE", self._path, params={"signal": _signal(signal)})
        except SandboxNotFoundError:
            raise
        except NotFoundError:
            return False
        return True


def _signal(signal: str | int) -> str:
    if isinstance(signal, int):
        import signal as numbers

        return numbers.Signals(signal).name
    return signal if signal.startswith("SIG") else f"SIG{signal}"


class AsyncTerminal(AsyncProcess):
    """A process with a terminal: what it draws is read from it, what is written to it are keys."""

    _offset = 0

    async def read(self) -> AsyncIterator[bytes]:
        """What it draws, from where the last reader stopped, until it ends."""
        async for event in self.output(self._offset):
            if event.is_output:
                self._offset = event.offset
                yield event.raw

    async def read_until(self, text: str | bytes, timeout: Duration = 30) -> bytes:
        """What it draws until this appears in it."""
        wanted, seen, left = text.encode() if isinstance(text, str) else text, b"", seconds(timeout)
        while wanted not in seen:
            found = False
            async for event in self.output(self._offset, follow=False):
                if event.is_output:
                    seen, self._offset, found = seen + event.raw, event.offset, True
                elif event.is_complete and wanted not in seen:
                    raise SandboxError(f"the terminal ended before {text!r} appeared: {seen[-200:]!r}")
            if not found:
                if left <= 0:
                    raise SandboxError(f"{text!r} did not appear within {timeout} seconds: {seen[-200:]!r}")
                await platform.sleep(0.05)
                left -= 0.05
        return seen

    async def resize(self, columns: int, rows: int) -> None:
        """Changes its size."""
        await self._client.ask("POST", f"{self._path}/resize", json={"columns": columns, "rows": rows})

    async def close(self) -> None:
        """Hangs up: what runs in it ends."""
        await platform.shielded(self.kill("SIGHUP"))

    async def __aenter__(self) -> AsyncTerminal:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncProcessManager:
    """The processes of a sandbox."""

    def __init__(self, client: AsyncClient, sandbox: str) -> None:
        self._client, self._sandbox = client, sandbox

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sandbox={self._sandbox!r})"

    async def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        tag: str | None = None,
        stdin: bool = False,
        timeout: Duration | None = None,
        hold: Duration | None = None,
    ) -> AsyncProcess:
        """Starts a process in the background. With `hold` it waits so long for somebody to read its output."""
        said: Json = {**_command(command, env, cwd, user), "stdin": stdin, "tag": tag}
        return AsyncProcess(self._client, self._sandbox, await self._start(said, timeout, hold), command)

    async def terminal(
        self,
        command: Command = ("/bin/sh", "-i"),
        *,
        columns: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> AsyncTerminal:
        """Starts a process with a terminal."""
        said = {**_command(command, env, cwd, user), "tty": {"columns": columns, "rows": rows}}
        return AsyncTerminal(self._client, self._sandbox, await self._start(said, None, HOLD), command)

    async def _start(self, said: Json, timeout: Duration | None, hold: Duration | None) -> int:
        for name, value in (("timeout", timeout), ("hold", hold)):
            if value is not None:
                said[name] = duration(value)
        started = await self._client.ask("POST", f"/sandboxes/{self._sandbox}/processes", json=said)
        return int(started["pid"])

    def attach(self, pid: int) -> AsyncProcess:
        """A process that was started earlier."""
        return AsyncProcess(self._client, self._sandbox, pid)

    async def launch(self, command: Command, cwd: str | None = None, env: Mapping[str, str] | None = None) -> int:
        """Starts a process in the background; its pid."""
        return (await self.start(command, cwd=cwd, env=env)).pid

    async def list(self, pattern: str | None = None) -> Infos:
        """Processes that run, all or those whose command contains this (or fits it, with `*`)."""
        return [one for one in await self._all() if one.status == "running" and _fits(one, pattern)]

    async def get(self, pid: int) -> ProcessInfo | None:
        """One of them, also if it has ended lately."""
        return next((one for one in await self._all() if one.pid == pid), None)

    async def list_processes(self, pattern: str | None = None) -> Infos:
        """The same as `list`, as the reference calls it."""
        return await self.list(pattern)

    async def get_process(self, pid: int) -> ProcessInfo | None:
        """The same as `get`, as the reference calls it."""
        return await self.get(pid)

    async def is_running(self, pid: int) -> bool:
        """Whether it runs."""
        found = await self.get(pid)
        return found is not None and found.status == "running"

    async def kill(self, pid: int, signal: str | int = "SIGKILL") -> bool:
        """Ends a process, whoever started it. `False` if there was none."""
        found = await self.get(pid)
        if found is None or found.status != "running":
            return False
        if found.managed:
            return await self.attach(pid).kill(_signal(signal))
        word = _signal(signal).removeprefix("SIG")
        return (await run(self._client, self._sandbox, ["kill", "-s", word, str(pid)], user="root")).success

    async def kill_by_pattern(self, pattern: str, signal: str | int = "SIGKILL") -> int:
        """Ends all that fit; how many."""
        killed = [await self.kill(one.pid, signal) for one in await self.list(pattern)]
        return sum(killed)

    async def kill_all_launched(self) -> int:
        """Ends all that were started through the API; how many."""
        killed = [await self.attach(one.pid).kill() for one in await self.list() if one.managed]
        return sum(killed)

    async def wait_for(self, pid: int, timeout: Duration | None = None) -> int:
        """Waits for the end of a process that was started through the API; its exit code."""
        return await self.attach(pid).wait(timeout)

    async def get_output(self, pid: int, tail: int | None = None) -> str:
        """What is kept of its output."""
        return await self.attach(pid).logs(tail)

    async def _all(self) -> Infos:
        said = await self._client.ask("GET", f"/sandboxes/{self._sandbox}/processes")
        return [ProcessInfo.of(one) for one in said]


def _fits(process: ProcessInfo, pattern: str | None) -> bool:
    return pattern is None or pattern in process.command or fnmatch.fnmatchcase(process.command, pattern)


class AsyncSession:
    """A working directory and variables that stay from one command to the next."""

    def __init__(self, client: AsyncClient, sandbox: str, id: str) -> None:
        self._client, self._sandbox, self.id = client, sandbox, id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def _path(self) -> str:
        return f"/sandboxes/{self._sandbox}/sessions/{quote(self.id)}"

    async def exec(
        self, command: str, *, timeout: Duration = 120, stdin: str | bytes | None = None, output_limit: Size = LARGEST_OUTPUT
    ) -> CommandResult:
        """Runs a line of the shell to its end, where the last one left off."""
        said: Json = {"command": command, "timeout": duration(timeout), "output_limit": size(output_limit)}
        if stdin is not None:
            said["stdin_base64"] = base64.b64encode(stdin.encode() if isinstance(stdin, str) else stdin).decode()
        return result(await self._client.ask("POST", f"{self._path}/exec", json=said, timeout=seconds(timeout) + 60))

    async def start(self, command: str, *, timeout: Duration | None = None, hold: Duration | None = None) -> AsyncProcess:
        """Starts a line of the shell in the background. The session is busy until it ends."""
        said: Json = {"command": command}
        for name, value in (("timeout", timeout), ("hold", hold)):
            if value is not None:
                said[name] = duration(value)
        started = await self._client.ask("POST", f"{self._path}/processes", json=said)
        return AsyncProcess(self._client, self._sandbox, int(started["pid"]), command)

    async def close(self) -> None:
        """Ends the session. Jobs that its commands left run on."""
        await platform.shielded(self._client.ask("DELETE", self._path))

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
