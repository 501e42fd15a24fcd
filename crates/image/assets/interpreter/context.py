"""One context: a kernel with its state, and the executions that wait for it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from typing import Any

import zmq
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from interpreter import outputs
from interpreter.languages import OwnKernels
from interpreter.outputs import Line

log = logging.getLogger("interpreter")

KEEPALIVE_SECONDS = 5.0
START_SECONDS = 60.0
# A reader that is slower than its program loses text beyond this; it is told so.
MAX_WAITING_BYTES = 32 * 1024 * 1024
# How long an ended execution waits for outputs that were lost on their way.
LOST_SECONDS = 5.0


class Execution:
    """What one execution has said and its client has not read."""

    def __init__(self) -> None:
        self.message_id = ""
        self.lines: asyncio.Queue[Line] = asyncio.Queue()
        self.replied = asyncio.Event()
        self.ended = asyncio.Event()
        self._waiting = 0
        self._dropping = False

    def put(self, line: Line) -> None:
        """Adds a line, unless the reader is too far behind."""
        size = len(line.get("text") or "") if line["type"] in ("stdout", "stderr") else 0
        if size and self._waiting + size > MAX_WAITING_BYTES:
            if not self._dropping:
                note = "[output was dropped here: it came faster than it was read]\n"
                self.lines.put_nowait(outputs.stream("stderr", note))
            self._dropping = True
            return
        self._dropping = False
        self._waiting += size
        self.lines.put_nowait(line)

    def taken(self, line: Line) -> None:
        """A line was written to the client."""
        if line["type"] in ("stdout", "stderr"):
            self._waiting -= len(line.get("text") or "")

    def end(self) -> None:
        """Nothing follows."""
        if not self.ended.is_set():
            self.ended.set()
            self.lines.put_nowait(outputs.END)


class Context:
    """A kernel of one language. It is started when it is first needed."""

    def __init__(self, language: str, cwd: str, env: dict[str, str]) -> None:
        self.id = str(uuid.uuid4())
        self.language = language
        self.cwd = cwd
        self._env = env
        self._turn = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._manager: AsyncKernelManager | None = None
        self._client: AsyncKernelClient | None = None
        self._folder: str | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._current: Execution | None = None
        self._removed = False

    def describe(self) -> dict[str, str]:
        """As clients see it."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    async def start(self) -> None:
        """Starts the kernel unless it runs."""
        async with self._starting:
            if self._removed:
                raise RuntimeError("The context was removed")
            if self._manager is not None and await self._manager.is_alive():
                return
            await self._stop_kernel()
            await self._start_kernel()

    async def restart(self) -> None:
        """Throws the kernel with all its state away and starts a new one."""
        async with self._starting:
            await self._stop_kernel()
            self._fail_current("ContextRestarted", "The context was restarted while this code ran")
            await self._start_kernel()

    async def close(self) -> None:
        """Ends the kernel for good."""
        self._removed = True
        async with self._starting:
            await self._stop_kernel()
            self._fail_current("ContextRemoved", "The context was removed while this code ran")

    async def execute(self, code: str, env_vars: dict[str, str]) -> AsyncIterator[Line]:
        """Runs code after everything that came before it, and yields what it says.

        Whoever stops listening before the end interrupts the code.
        """
        while True:
            try:
                await asyncio.wait_for(self._turn.acquire(), KEEPALIVE_SECONDS)
                break
            except asyncio.TimeoutError:
                yield outputs.KEEPALIVE
        execution = Execution()
        starter = asyncio.ensure_future(self._begin(execution, code, env_vars))
        watcher: asyncio.Task[None] | None = None
        try:
            watcher = asyncio.create_task(self._watch(execution, starter))
            while True:
                try:
                    line = await asyncio.wait_for(execution.lines.get(), KEEPALIVE_SECONDS)
                except asyncio.TimeoutError:
                    yield outputs.KEEPALIVE
                    continue
                yield line
                execution.taken(line)
                if line is outputs.END:
                    return
        finally:
            if execution.ended.is_set():
                self._turn.release()
            else:
                # The next execution must not start before this one has stopped.
                task = asyncio.create_task(self._abandon(execution, starter))
                _background.add(task)
                task.add_done_callback(_background.discard)

    async def _begin(self, execution: Execution, code: str, env_vars: dict[str, str]) -> None:
        await self.start()
        client = self._client
        if client is None:
            raise RuntimeError("The kernel has no connection")
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            # Whoever asks next is not answerable for an error, or an interrupt, of the one before.
            "stop_on_error": False,
        }
        message = client.session.msg("execute_request", content, metadata={"env_vars": env_vars})
        execution.message_id = message["header"]["msg_id"]
        self._current = execution
        client.shell_channel.send(message)

    async def _watch(self, execution: Execution, starter: asyncio.Future[None]) -> None:
        """Ends an execution whose kernel cannot start, dies, or loses its last word."""
        try:
            await starter
        except Exception as error:  # noqa: BLE001: whatever it is, the client hears of it
            log.warning("context %s: %s", self.id, error)
            execution.put(outputs.error("KernelStartError", f"The kernel could not be started: {error}", ""))
            execution.end()
            return
        quiet = 0.0
        while not execution.ended.is_set():
            try:
                await asyncio.wait_for(execution.ended.wait(), 0.2)
            except asyncio.TimeoutError:
                quiet = quiet + 0.2 if execution.replied.is_set() else 0.0
                if quiet > LOST_SECONDS:
                    execution.end()
                elif self._current is execution and not self._starting.locked():
                    await self._check_alive()

    async def _check_alive(self) -> None:
        async with self._starting:
            manager = self._manager
            if manager is None or self._removed or await manager.is_alive():
                return
            code = getattr(getattr(manager.provisioner, "process", None), "returncode", None)
            how = f"signal {-code}" if isinstance(code, int) and code < 0 else f"exit status {code}"
            # What it said before it died may still be on its way.
            await asyncio.sleep(0.1)
            await self._stop_kernel()
            self._fail_current("KernelDied", f"The kernel died ({how}); it was restarted and its state is lost")
            await self._start_kernel()

    async def _abandon(self, execution: Execution, starter: asyncio.Future[None]) -> None:
        try:
            try:
                await starter
            except Exception:  # noqa: BLE001: the watcher reports it
                return
            # Code may catch the first interrupt; a later one may find it elsewhere.
            for _ in range(5):
                if execution.ended.is_set():
                    return
                await self._interrupt()
                try:
                    await asyncio.wait_for(execution.ended.wait(), 2.0)
                except asyncio.TimeoutError:
                    continue
            await execution.ended.wait()
        finally:
            self._turn.release()

    async def _interrupt(self) -> None:
        async with self._starting:
            if self._manager is not None and await self._manager.is_alive():
                await self._manager.interrupt_kernel()

    def _fail_current(self, name: str, reason: str) -> None:
        if self._current is not None and not self._current.ended.is_set():
            self._current.put(outputs.error(name, reason, f"{name}: {reason}"))
            self._current.end()
        self._current = None

    async def _start_kernel(self) -> None:
        # Sockets in a folder of our own: no ports that collide or that others may knock at.
        folder = tempfile.mkdtemp(prefix="kernel-")
        self._folder = folder
        manager = AsyncKernelManager(
            kernel_name=self.language,
            kernel_spec_manager=OwnKernels(),
            transport="ipc",
            ip=os.path.join(folder, "socket"),
            connection_file=os.path.join(folder, "connection.json"),
        )
        self._manager = manager
        await manager.start_kernel(env=self._env, cwd=self.cwd)
        client = manager.client()
        # Nothing that the kernel says is dropped in the queue of this socket.
        client.context.setsockopt(zmq.RCVHWM, 0)
        client.start_channels(stdin=False, hb=False)
        self._client = client
        await asyncio.wait_for(self._answers(manager, client), START_SECONDS)
        self._readers = [
            asyncio.create_task(self._read_outputs(client)),
            asyncio.create_task(self._read_replies(client)),
        ]

    async def _answers(self, manager: AsyncKernelManager, client: AsyncKernelClient) -> None:
        """Waits until the kernel takes requests and is heard: what it says before somebody listens is lost."""
        client.kernel_info()
        replied = asyncio.ensure_future(self._next(client.shell_channel))
        heard = asyncio.ensure_future(self._next(client.iopub_channel))
        try:
            while True:
                done, _ = await asyncio.wait({replied, heard}, timeout=0.2, return_when=asyncio.ALL_COMPLETED)
                if len(done) == 2:
                    return
                if not await manager.is_alive():
                    raise RuntimeError("it ended while it started")
                if replied in done:
                    client.kernel_info()
        finally:
            for waiting in (replied, heard):
                waiting.cancel()
            await asyncio.gather(replied, heard, return_exceptions=True)

    async def _stop_kernel(self) -> None:
        manager, client, folder = self._manager, self._client, self._folder
        self._manager, self._client, self._folder = None, None, None
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._readers = []
        if client is not None:
            client.stop_channels()
        if manager is not None:
            try:
                await manager.shutdown_kernel(now=True)
            except Exception as error:  # noqa: BLE001: a kernel that is gone is what is wanted
                log.warning("context %s: %s", self.id, error)
            manager.context.destroy(linger=0)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def _read_outputs(self, client: AsyncKernelClient) -> None:
        while True:
            message = await self._next(client.iopub_channel)
            execution = self._current
            if execution is None or message["parent_header"].get("msg_id") != execution.message_id:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content.get("execution_state") == "idle":
                execution.end()
                continue
            line = outputs.from_message(message["msg_type"], content)
            if line is not None:
                execution.put(line)

    async def _read_replies(self, client: AsyncKernelClient) -> None:
        while True:
            message = await self._next(client.shell_channel)
            execution = self._current
            if execution is not None and message["parent_header"].get("msg_id") == execution.message_id:
                execution.replied.set()

    async def _next(self, channel: Any) -> dict[str, Any]:
        while True:
            try:
                return await channel.get_msg()
            except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
                # Code may write into its own kernel's sockets; that is its own loss.
                log.warning("context %s: a message was unreadable: %s", self.id, error)


_background: set[asyncio.Task[None]] = set()
