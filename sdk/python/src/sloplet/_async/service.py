"""The reference's service client: the same verbs under its names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from .._units import Duration
from ..errors import SandboxError
from ..types import Command, CommandResult, ProcessInfo, SessionInfo, StreamEvent
from .client import quote
from .processes import AsyncSession

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox


class AsyncServiceClient:
    """What a sandbox in service mode offers over HTTP."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._sandbox.id!r})"

    async def health(self) -> bool:
        """Whether it answers."""
        try:
            return (await self._sandbox.exec("true", timeout=10)).success
        except SandboxError:
            return False

    async def exec(
        self, command: Command, env: Mapping[str, str] | None = None, cwd: str | None = None, timeout: Duration = 120
    ) -> CommandResult:
        """Runs a command to its end."""
        return await self._sandbox.exec(command, env, cwd, timeout)

    async def exec_stream(
        self,
        command: Command,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: Duration | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Runs a command and tells what it writes while it does."""
        async for event in self._sandbox.exec_stream(command, env, cwd, timeout):
            yield event

    async def exec_background(self, command: Command, env: Mapping[str, str] | None = None, cwd: str | None = None) -> int:
        """Starts a process; its pid."""
        return await self._sandbox.launch_process(command, cwd, env)

    async def list_processes(self) -> list[ProcessInfo]:
        """Processes that run."""
        return await self._sandbox.list_processes()

    async def get_process_logs(self, pid: int, tail: int | None = None) -> str:
        """What is kept of a process's output."""
        return await self._sandbox.processes.get_output(pid, tail)

    async def stream_process_logs(self, pid: int) -> AsyncIterator[str]:
        """What a process wrote and writes, line by line, until it ends."""
        rest = ""
        async for event in self._sandbox.processes.attach(pid).output():
            if event.is_output:
                *lines, rest = (rest + event.data).split("\n")
                for line in lines:
                    yield line
        if rest:
            yield rest

    async def kill_process(self, pid: int, signal: str | int = "SIGTERM") -> bool:
        """Sends a signal to a process."""
        return await self._sandbox.processes.kill(pid, signal)

    async def create_session(
        self, session_id: str | None = None, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> str:
        """Opens a session; its name."""
        made = await self._sandbox.create_session(session_id, env=env, cwd=cwd)
        return session_id or made.id

    async def get_session(self, session_id: str) -> SessionInfo:
        """A session that is open."""
        path = f"/sandboxes/{self._sandbox.id}/sessions/{quote(session_id)}"
        return SessionInfo.of(await self._sandbox.client.ask("GET", path))

    async def session_exec(self, session_id: str, command: str, timeout: Duration = 120) -> CommandResult:
        """Runs a command in a session."""
        session = AsyncSession(self._sandbox.client, self._sandbox.id, session_id)
        return await session.exec(command, timeout=timeout)

    async def close_session(self, session_id: str) -> None:
        """Ends a session."""
        await AsyncSession(self._sandbox.client, self._sandbox.id, session_id).close()
