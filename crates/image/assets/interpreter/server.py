"""The HTTP server: which request does what."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import site
import sys
from typing import Any

from interpreter import languages
from interpreter.contexts import Contexts
from interpreter.http11 import (
    MAX_HEAD,
    HttpError,
    Request,
    chunk,
    encode_json,
    read_request,
    stream_head,
    whole_response,
)

log = logging.getLogger("interpreter")

PORT = 49999
WRITE_TIMEOUT = 60.0


class Server:
    """Answers requests about one set of contexts."""

    def __init__(self, contexts: Contexts) -> None:
        self.contexts = contexts
        self.ready = False

    async def prepare(self) -> None:
        """Starts the kernel that is almost always needed."""
        try:
            await self.contexts.default("python").start()
        except Exception as error:  # noqa: BLE001: the first execution tries again and tells its client
            log.error("the default kernel could not be started: %s", error)
        self.ready = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request by request."""
        try:
            going_on = True
            while going_on:
                going_on = await self._serve_one(reader, writer)
        except (ConnectionError, asyncio.TimeoutError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            request = await read_request(reader, writer)
        except HttpError as error:
            # What follows on this connection cannot be told apart any more.
            writer.write(_refusal(error, keep_alive=False))
            await writer.drain()
            return False
        if request is None:
            return False
        try:
            if (request.method, request.path) == ("POST", "/execute"):
                return await self._execute(request, reader, writer) and request.keep_alive
            status, value = await self._answer(request)
            body = b"" if value is None else encode_json(value)
            writer.write(whole_response(status, body, "application/json", request.keep_alive))
        except HttpError as error:
            writer.write(_refusal(error, request.keep_alive))
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001: one bad request must not end the server
            log.exception("%s %s", request.method, request.path)
            writer.write(_refusal(HttpError(500, f"Internal error: {error}"), request.keep_alive))
        await writer.drain()
        return request.keep_alive

    async def _answer(self, request: Request) -> tuple[int, Any]:
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["health"]:
                if not self.ready:
                    raise HttpError(503, "The default kernel is starting")
                return 200, "OK"
            case "GET", ["contexts"]:
                return 200, [context.describe() for context in self.contexts.list()]
            case "POST", ["contexts"]:
                body = request.json()
                language = languages.normalize(_text(body, "language"))
                context = await self.contexts.create(language, _text(body, "cwd"))
                return 200, context.describe()
            case "DELETE", ["contexts", context_id]:
                await self.contexts.remove(context_id)
                return 204, None
            case "POST", ["contexts", context_id, "restart"]:
                await self.contexts.get(context_id).restart()
                return 204, None
            case _, ["execute"] | ["health"] | ["contexts"] | ["contexts", _] | ["contexts", _, "restart"]:
                raise HttpError(405, "This method is not allowed here")
        raise HttpError(404, "There is nothing here")

    async def _execute(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Streams an execution; False when the client left before its end."""
        body = request.json()
        code = _text(body, "code")
        if code is None:
            raise HttpError(400, "'code' is missing")
        context_id, language = _text(body, "context_id"), _text(body, "language")
        if context_id and language:
            raise HttpError(400, "Only one of context_id and language can be given")
        env_vars = _env_vars(body)
        if context_id:
            context = self.contexts.get(context_id)
        else:
            context = self.contexts.default(languages.normalize(language))

        async def send() -> None:
            writer.write(stream_head(request.keep_alive))
            lines = context.execute(code, env_vars)
            try:
                async for line in lines:
                    writer.write(chunk(encode_json(line) + b"\n"))
                    await writer.drain()
            finally:
                await lines.aclose()
            writer.write(chunk(b""))
            await writer.drain()

        sending = asyncio.create_task(send())
        # Nothing is due from the client before the end: what arrives is its leaving (or a request that came too early).
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                return False
            await sending
            return not leaving.done()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise HttpError(400, f"'{name}' must be a string")
    return value


def _env_vars(body: dict[str, Any]) -> dict[str, str]:
    value = body.get("env_vars")
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise HttpError(400, "'env_vars' must be an object of strings")
    for name, entry in value.items():
        if not name or "=" in name or "\0" in name or "\0" in entry:
            raise HttpError(400, "'env_vars' holds a name or a value that no environment can hold")
    return value


def _refusal(error: HttpError, keep_alive: bool) -> bytes:
    return whole_response(error.status, error.text.encode(), "text/plain; charset=utf-8", keep_alive)


def kernel_environment() -> dict[str, str]:
    """What kernels inherit."""
    env = dict(os.environ)
    env.setdefault("HOME", os.path.expanduser("~"))
    # A folder that appears after Python has started is not searched: `pip install` must find it there.
    try:
        os.makedirs(site.getusersitepackages(), exist_ok=True)
    except OSError as error:
        log.info("no place for a user's own packages: %s", error)
    return env


async def run(host: str, port: int, cwd: str) -> None:
    """Serves until a signal ends it."""
    contexts = Contexts(cwd, kernel_environment())
    server = Server(contexts)
    listener = await asyncio.start_server(server.serve, host, port, limit=MAX_HEAD)
    print(f"listening on {host}:{listener.sockets[0].getsockname()[1]}", flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    preparing = asyncio.create_task(server.prepare())
    await stop.wait()
    listener.close()
    preparing.cancel()
    await contexts.close()


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="interpreter", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--cwd", default="/home/user", help="where code runs unless it is told otherwise")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    cwd = options.cwd if os.path.isdir(options.cwd) else os.getcwd()
    asyncio.run(run(options.host, options.port, cwd))
    return 0
