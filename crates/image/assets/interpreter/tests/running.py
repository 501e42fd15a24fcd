"""Starts the server for a test, and speaks to it."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
Line = dict[str, Any]


def has(module: str) -> bool:
    """Whether a module is installed."""
    return importlib.util.find_spec(module) is not None


@unittest.skipUnless(has("ipykernel") and has("jupyter_client"), "ipykernel is not installed")
class RunningServer(unittest.TestCase):
    """One server for all tests of a class."""

    process: subprocess.Popen[str]
    port: int

    @classmethod
    def setUpClass(cls) -> None:
        """Starts it on a free port and waits until it is ready."""
        cls.home = tempfile.TemporaryDirectory()
        command = [sys.executable, "-I", str(PACKAGE), "--port", "0", "--cwd", cls.home.name]
        env = {**os.environ, "HOME": cls.home.name, "GLOBAL": "global"}
        cls.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert cls.process.stdout is not None
        cls.port = int(cls.process.stdout.readline().rsplit(":", 1)[1])
        deadline = time.monotonic() + 60
        while cls.call("GET", "/health")[0] != 200:
            if time.monotonic() > deadline:
                raise TimeoutError("the server does not become ready")
            time.sleep(0.05)

    @classmethod
    def tearDownClass(cls) -> None:
        """Ends it; it takes its kernels with it."""
        cls.process.send_signal(signal.SIGTERM)
        status = cls.process.wait(30)
        if cls.process.stdout is not None:
            cls.process.stdout.close()
        cls.home.cleanup()
        assert status == 0, status

    @classmethod
    def call(cls, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request and its answer, as JSON where it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", cls.port, timeout=60)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        is_json = response.headers.get("Content-Type") == "application/json"
        return response.status, json.loads(content) if is_json else content.decode()

    def begin(self, code: str, **options: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Starts an execution whose lines are read later, or never."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/execute", json.dumps({"code": code, **options}))
        response = connection.getresponse()
        self.assertEqual(response.status, 200, response.status != 200 and response.read())
        return connection, response

    def lines(self, code: str, **options: Any) -> list[Line]:
        """Everything that an execution says, but for what every one says."""
        connection, response = self.begin(code, **options)
        lines = list(read_lines(response))
        connection.close()
        self.assertEqual(lines[-1], {"type": "end_of_execution"})
        return [line for line in lines[:-1] if line["type"] not in ("number_of_executions", "keepalive")]

    def text(self, code: str, **options: Any) -> str | None:
        """The text of the main result; nothing may have failed."""
        lines = self.lines(code, **options)
        self.assertFalse([line for line in lines if line["type"] == "error"], lines)
        return next((line.get("text") for line in lines if line.get("is_main_result")), None)

    def printed(self, code: str, stream: str = "stdout", **options: Any) -> str:
        """What was printed."""
        return "".join(line["text"] for line in self.lines(code, **options) if line["type"] == stream)

    def error(self, code: str, **options: Any) -> Line:
        """The error; there must be one."""
        lines = self.lines(code, **options)
        errors = [line for line in lines if line["type"] == "error"]
        self.assertEqual(len(errors), 1, lines)
        return errors[0]


def read_lines(response: http.client.HTTPResponse) -> Iterator[Line]:
    """The lines of a stream as they come."""
    for line in response:
        yield json.loads(line)
