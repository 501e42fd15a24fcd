"""What processes wrote, as text."""

from __future__ import annotations

import base64
import codecs

from ._sse import Event
from .types import CommandResult, Json, StreamEvent


class Decoder:
    """Turns events of a process into text. A character may come in two events: it appears with the second."""

    def __init__(self) -> None:
        self._texts: dict[str, codecs.IncrementalDecoder] = {}

    def event(self, event: Event) -> StreamEvent | None:
        """What it says; `None` if nothing is to be told yet."""
        said = event.json()
        if event.name == "exit":
            if said.get("exit_code") is None:
                return StreamEvent("error", str(said.get("lost") or "nobody knows how it ended"))
            return StreamEvent("exit", str(said["exit_code"]))
        if event.name == "gap":
            return StreamEvent("gap", str(said["to"] - said["from"]), offset=said["to"])
        raw = base64.b64decode(said["base64"]) if "base64" in said else str(said.get("text", "")).encode()
        decoder = self._texts.get(event.name)
        if decoder is None:
            decoder = self._texts[event.name] = codecs.getincrementaldecoder("utf-8")("replace")
        return StreamEvent(event.name, decoder.decode(raw), raw=raw, offset=int(said["offset"]) + len(raw))


def result(said: Json) -> CommandResult:
    """How a command ended."""
    raw = {name: _bytes(said, name) for name in ("stdout", "stderr")}
    return CommandResult(
        stdout=said["stdout"],
        stderr=said["stderr"],
        exit_code=said["exit_code"],
        timed_out=said["timed_out"],
        truncated=said["truncated"],
        duration=said["duration_ms"] / 1000,
        stdout_bytes=raw["stdout"],
        stderr_bytes=raw["stderr"],
    )


def _bytes(said: Json, name: str) -> bytes:
    encoded = said.get(f"{name}_base64")
    return base64.b64decode(encoded) if encoded else str(said[name]).encode()
