"""Server-sent events out of bytes that come in any pieces."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .errors import ServiceConnectionError

#: Bytes of one event: what a server sends is far less.
LARGEST = 8 * 1024 * 1024


@dataclass(frozen=True)
class Event:
    """One event."""

    name: str
    id: str
    data: str

    def json(self) -> dict[str, Any]:
        """Its data."""
        value = json.loads(self.data)
        return value if isinstance(value, dict) else {}


class Parser:
    """Takes bytes, gives events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete now."""
        self._rest += data
        *blocks, self._rest = self._rest.split(b"\n\n")
        if len(self._rest) > LARGEST:
            raise ServiceConnectionError("the server sent an event that is too long", hint="is this a sloplet server?")
        return [event for event in map(self._event, blocks) if event is not None]

    @staticmethod
    def _event(block: bytes) -> Event | None:
        fields: dict[str, str] = {}
        for line in block.decode("utf-8", "replace").split("\n"):
            name, _, value = line.partition(":")
            if name and value:
                fields[name] = value.removeprefix(" ")
        # Comments only say that somebody is still there.
        return Event(fields.get("event", "message"), fields.get("id", ""), fields["data"]) if "data" in fields else None
