"""As much of HTTP/1.1 as the interpreter needs, on asyncio streams. Every size is bounded."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

MAX_HEAD = 64 * 1024
MAX_BODY = 16 * 1024 * 1024
HEAD_TIMEOUT = 640.0
BODY_TIMEOUT = 60.0

REASONS = {
    200: "OK",
    201: "Created",
    204: "No Content",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpError(Exception):
    """An answer other than success; the text is for the caller."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass
class Request:
    """One request, read completely."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may serve another request."""
        return self.headers.get("connection", "").lower() != "close"

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; an empty body is an empty object."""
        if not self.body.strip():
            return {}
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"The body is not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise HttpError(400, "The body must be a JSON object")
        return value


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """Reads the next request; None when the client has left."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_TIMEOUT)
    except (asyncio.IncompleteReadError, asyncio.TimeoutError, ConnectionError):
        return None
    except asyncio.LimitOverrunError as error:
        raise HttpError(431, "The request's headers are too large") from error
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise HttpError(400, "This is not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if line:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise HttpError(400, "A header line is malformed")
            headers[name.lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        body = await asyncio.wait_for(_read_body(reader, headers), BODY_TIMEOUT)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except asyncio.TimeoutError as error:
        raise HttpError(408, "The body did not arrive in time") from error
    return Request(words[0], words[1].split("?", 1)[0], headers, body)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    encoding = headers.get("transfer-encoding", "").lower()
    length = headers.get("content-length")
    if encoding == "chunked" and length is None:
        return await _read_chunks(reader)
    if encoding:
        raise HttpError(400, "Only a content length or the chunked encoding is understood")
    if length is None:
        return b""
    if not (length.isascii() and length.isdigit()):
        raise HttpError(400, "The content length is not a number")
    # A number of more digits than this is too large whatever it is.
    if len(length) > 12 or int(length) > MAX_BODY:
        raise HttpError(413, f"The body exceeds {MAX_BODY} bytes")
    return await reader.readexactly(int(length))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        line = await _read_line(reader)
        try:
            size = int(line.split(b";", 1)[0].strip(), 16)
        except ValueError as error:
            raise HttpError(400, "A chunk's size is malformed") from error
        if size < 0 or len(body) + size > MAX_BODY:
            raise HttpError(413, f"The body exceeds {MAX_BODY} bytes")
        if size == 0:
            break
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise HttpError(400, "A chunk does not end where it said")
    for _ in range(100):
        if await _read_line(reader) == b"\r\n":
            return bytes(body)
    raise HttpError(400, "Too many trailers")


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError as error:
        raise HttpError(400, "A line of the body's encoding is too long") from error


def encode_json(value: Any) -> bytes:
    """Strict JSON: what is no JSON number or string is made one."""
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (ValueError, TypeError):
        return json.dumps(_strict(value), allow_nan=False).encode()


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(name): _strict(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(entry) for entry in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)


def whole_response(status: int, body: bytes, content_type: str, keep_alive: bool) -> bytes:
    """A response whose length is known."""
    head = _head(status, keep_alive)
    if status != 204:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + (body if status != 204 else b"")


def stream_head(keep_alive: bool) -> bytes:
    """The start of a response that comes in chunks of newline-separated JSON."""
    head = _head(200, keep_alive) + "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n"
    return (head + "Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    """One chunk; empty data is the end."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _head(status: int, keep_alive: bool) -> str:
    connection = "keep-alive" if keep_alive else "close"
    return f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}\r\nConnection: {connection}\r\n"
