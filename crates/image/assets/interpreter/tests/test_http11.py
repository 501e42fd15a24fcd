"""Requests, good and bad."""

from __future__ import annotations

import asyncio
import unittest
from unittest.mock import patch

from interpreter import http11
from interpreter.http11 import HttpError, Request


class Writer:
    """Collects what is written."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        """As a stream does it."""
        self.data += data


def parse(data: bytes) -> Request | None:
    """Reads a request that is all there is."""

    async def read() -> Request | None:
        reader = asyncio.StreamReader(limit=http11.MAX_HEAD)
        reader.feed_data(data)
        reader.feed_eof()
        return await http11.read_request(reader, Writer())  # type: ignore[arg-type]

    return asyncio.run(read())


class Requests(unittest.TestCase):
    """What is read and what is refused."""

    def refused(self, data: bytes, status: int) -> None:
        """It must be refused with this status."""
        with self.assertRaises(HttpError) as caught:
            parse(data)
        self.assertEqual(caught.exception.status, status)

    def test_a_body_with_a_length(self) -> None:
        request = parse(b"POST /execute?x=1 HTTP/1.1\r\nContent-Length: 8\r\nA: b\r\n\r\n{\"a\": 1}")
        assert request is not None
        self.assertEqual((request.method, request.path, request.json()), ("POST", "/execute", {"a": 1}))
        self.assertTrue(request.keep_alive)

    def test_a_body_in_chunks(self) -> None:
        head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        request = parse(head + b"3\r\n{\"a\r\n5;x=y\r\n\": 1}\r\n0\r\nT: t\r\n\r\n")
        assert request is not None
        self.assertEqual(request.json(), {"a": 1})
        self.assertFalse(request.keep_alive)

    def test_a_client_that_leaves_is_no_error(self) -> None:
        self.assertIsNone(parse(b""))
        self.assertIsNone(parse(b"POST / HTTP/1.1\r\nContent-Le"))
        self.assertIsNone(parse(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"))

    def test_what_is_no_request_is_refused(self) -> None:
        self.refused(b"hello\r\n\r\n", 400)
        self.refused(b"GET / HTTP/2\r\n\r\n", 400)
        self.refused(b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400)
        self.refused(b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400)
        self.refused(b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400)
        self.refused(b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400)
        self.refused(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400)
        self.refused(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400)

    def test_sizes_are_bounded(self) -> None:
        self.refused(b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 413)
        self.refused(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", 413)
        self.refused(b"GET / HTTP/1.1\r\nA: " + b"x" * http11.MAX_HEAD + b"\r\n\r\n", 431)
        with patch.object(http11, "MAX_BODY", 4):
            self.refused(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\nabc\r\n0\r\n\r\n", 413)

    def test_a_body_that_is_no_object_is_refused(self) -> None:
        for body in (b"{", b"[1]", b"\xff", b"1", b"[" * 100_000):
            with self.assertRaises(HttpError) as caught:
                Request("POST", "/", {}, body).json()
            self.assertEqual(caught.exception.status, 400)
        self.assertEqual(Request("POST", "/", {}, b" ").json(), {})


class Answers(unittest.TestCase):
    """What is written."""

    def test_what_json_cannot_hold_is_made_json(self) -> None:
        value = {"a": float("nan"), 2: [float("inf"), (1, None)], "b": b"x", "c": True}
        self.assertEqual(http11.encode_json(value), b'{"a": null, "2": [null, [1, null]], "b": "b\'x\'", "c": true}')

    def test_a_response_without_content_has_no_length(self) -> None:
        self.assertNotIn(b"Content-Length", http11.whole_response(204, b"", "", True))
        self.assertIn(b"Connection: close", http11.stream_head(False))
        self.assertEqual(http11.chunk(b"abc"), b"3\r\nabc\r\n")
