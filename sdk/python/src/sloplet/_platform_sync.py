"""What differs between waiting and blocking besides the words `async` and `await`: for those who block."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from time import sleep as sleep
from typing import Any, TypeVar

import httpx

from ._find import Place

HttpClient = httpx.Client
Transport = httpx.HTTPTransport


def run_program(words: list[str], timeout: float) -> tuple[int, str, str]:
    """Runs a program on this machine; its exit code, output and errors."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Local data as a body."""
    yield from parts


T = TypeVar("T")


def shielded(done: T) -> T:
    """What was done is done."""
    return done


_shared: dict[int, dict[Place, Any]] = {}


def shared() -> dict[Place, Any]:
    """Clients of this process: a forked child must not use its parent's connections."""
    return _shared.setdefault(os.getpid(), {})
