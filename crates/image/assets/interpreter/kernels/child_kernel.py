"""A Jupyter kernel whose code runs in another program that it keeps."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
from typing import Any

# A debugger that nobody can reach costs a third of the time to start.
sys.modules["debugpy"] = None  # type: ignore[assignment]
from ipykernel.kernelbase import Kernel  # noqa: E402

STUBBORN_SECONDS = 10.0
READ_SIZE = 64 * 1024
MAX_PIPE = 1024 * 1024
INTERRUPTED = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}


class Gone(Exception):
    """The program has ended."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class ChildKernel(Kernel):
    """Starts the program, passes its output on, and passes interrupts by.

    The program gets two more descriptors: one to read requests from, one to write answers to. Its output is read all the time,
    so that nothing that it leaves running in the background ever blocks.
    """

    implementation = "sloplet"
    implementation_version = "1"
    banner = ""
    language = "text"
    # How long an interrupted program may take to answer before it is asked whether it still listens.
    grace = 1.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.language_info = {"name": self.language, "mimetype": "text/plain", "file_extension": ".txt"}
        self._process: asyncio.subprocess.Process | None = None
        self._requests = -1
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._pipes: list[tuple[int, str, Any]] = []
        self._interrupted = asyncio.Event()
        self._running = False

    def command(self, requests: int, answers: int) -> list[str]:
        """The program, which finds its requests and answers at these descriptors."""
        raise NotImplementedError

    async def run(self, code: str, env_vars: dict[str, str]) -> dict[str, Any] | None:
        """Runs code to its end; an error is `{ename, evalue, traceback}`."""
        raise NotImplementedError

    async def recover(self) -> bool:
        """Brings a program that does not answer after an interrupt back to where it takes requests; False if it cannot."""
        return False

    @property
    def interrupted(self) -> bool:
        """Whether the code that runs was interrupted."""
        return self._interrupted.is_set()

    # Interrupts are events of the loop here, not exceptions in the middle of it.
    def pre_handler_hook(self) -> None:
        """Keeps the loop's own handler."""

    def post_handler_hook(self) -> None:
        """Keeps the loop's own handler."""

    def start(self) -> None:
        """Starts to take messages."""
        super().start()
        loop = asyncio.get_event_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupted.set)

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Any = None,
        allow_stdin: bool = False,
        **_: Any,
    ) -> dict[str, Any]:
        """One execution, as the protocol of kernels wants it."""
        env_vars = self.get_parent("shell").get("metadata", {}).get("env_vars") or {}
        self._interrupted.clear()
        self._running = True
        running = asyncio.ensure_future(self._run_started(code, env_vars))
        stopping = asyncio.ensure_future(self._interrupted.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                # The program has got the same signal and may end the code in its own way.
                await asyncio.wait({running}, timeout=self.grace)
            if running.done():
                problem = running.result()
            else:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                if not await self._recovered():
                    # Something ignores the interrupt: only the end of everything that was started here ends it.
                    os.killpg(0, signal.SIGKILL)
                problem = INTERRUPTED
        except Gone as gone:
            await self.stop_child()
            value = f"the program ended ({describe_status(gone.status)}); its state is lost"
            problem = {"ename": "Exit", "evalue": str(gone.status), "traceback": [value]}
        finally:
            stopping.cancel()
        self.flush_pipes()
        self._running = False
        reply = {"execution_count": self.execution_count, "user_expressions": {}, "payload": []}
        if problem is None:
            return {"status": "ok", **reply}
        self.send_response(self.iopub_socket, "error", problem)
        return {"status": "error", **problem, **reply}

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """Ends the program too."""
        await self.stop_child()
        return {"status": "ok", "restart": restart}

    async def _run_started(self, code: str, env_vars: dict[str, str]) -> dict[str, Any] | None:
        await self.start_child()
        return await self.run(code, env_vars)

    async def _recovered(self) -> bool:
        try:
            return await asyncio.wait_for(self.recover(), STUBBORN_SECONDS)
        except (asyncio.TimeoutError, Gone):
            return False

    async def start_child(self) -> None:
        """Starts the program unless it runs."""
        if self._process is not None and self._process.returncode is None:
            return
        await self.stop_child()
        request_out, request_in = os.pipe()
        answer_out, answer_in = os.pipe()
        stdout_out, stdout_in = os.pipe()
        stderr_out, stderr_in = os.pipe()
        for descriptor in (request_out, answer_in):
            os.set_inheritable(descriptor, True)
        self._process = await asyncio.create_subprocess_exec(
            *self.command(request_out, answer_in),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout_in,
            stderr=stderr_in,
            pass_fds=(request_out, answer_in),
            # ipykernel ignores SIGINT while it starts; a program that inherits this could not be interrupted.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )
        for descriptor in (request_out, answer_in, stdout_in, stderr_in):
            os.close(descriptor)
        self._requests = request_in
        self._answers = asyncio.Queue()
        loop = asyncio.get_running_loop()
        decoder = codecs.getincrementaldecoder("utf-8")
        self._pipes = [(stdout_out, "stdout", decoder("replace")), (stderr_out, "stderr", decoder("replace"))]
        for descriptor in (answer_out, stdout_out, stderr_out):
            os.set_blocking(descriptor, False)
        for pipe in self._pipes:
            loop.add_reader(pipe[0], self._pass_on, pipe)
        loop.add_reader(answer_out, self._take_answer, answer_out, self._answers)
        self._answer_pipe = answer_out

    async def stop_child(self) -> None:
        """Kills the program and forgets it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.returncode is None:
            process.kill()
        await process.wait()
        self.flush_pipes()
        loop = asyncio.get_running_loop()
        for descriptor in (self._answer_pipe, *(pipe[0] for pipe in self._pipes)):
            loop.remove_reader(descriptor)
            os.close(descriptor)
        os.close(self._requests)
        self._pipes = []

    def flush_pipes(self) -> None:
        """Everything that was printed until now: what fits into a pipe, for something may go on printing."""
        for pipe in self._pipes:
            for _ in range(MAX_PIPE // READ_SIZE + 1):
                if not self._pass_on(pipe):
                    break

    def _pass_on(self, pipe: tuple[int, str, Any]) -> bool:
        descriptor, name, decoder = pipe
        try:
            data = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)
            return False
        text = decoder.decode(data)
        # What is printed between executions belongs to none of them.
        if text and self._running:
            self.send_response(self.iopub_socket, "stream", {"name": name, "text": text})
        return True

    def _take_answer(self, descriptor: int, answers: asyncio.Queue[bytes | None]) -> None:
        try:
            data = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return
        answers.put_nowait(data or None)
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)

    async def request(self, data: bytes) -> None:
        """Writes to the program, which may be slow to read."""
        descriptor = self._requests
        try:
            await asyncio.get_running_loop().run_in_executor(None, write_all, descriptor, data)
        except OSError as error:
            raise await self._gone() from error

    async def answer(self) -> bytes:
        """The program's next line."""
        line = b""
        while not line.endswith(b"\n"):
            part = await self._answers.get()
            if part is None:
                raise await self._gone()
            line += part
        return line

    async def _gone(self) -> Gone:
        process = self._process
        if process is None:
            return Gone(-signal.SIGKILL)
        try:
            return Gone(await asyncio.wait_for(process.wait(), STUBBORN_SECONDS))
        except asyncio.TimeoutError:
            # It has closed the descriptor on purpose; without it there is no talking to it.
            process.kill()
            return Gone(await process.wait())


def write_all(descriptor: int, data: bytes) -> None:
    """Writes everything."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def describe_status(status: int) -> str:
    """An end in words."""
    return f"signal {-status}" if status < 0 else f"exit status {status}"
