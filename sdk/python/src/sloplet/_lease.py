"""Holds sandboxes for as long as this program lives: the server ends them when it has not heard of them for a while."""

from __future__ import annotations

import os
import threading
import time

from ._find import Place
from .errors import SandboxError, SandboxNotFoundError

#: Seconds after which the server ends what a killed program held, and how often one that lives says so.
LEASE, HEARTBEAT = 120.0, 30.0


class _Keeper:
    """One thread for all: an event loop may be busy for longer than a lease."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[Place, str], int] = {}
        self._beats = False

    def hold(self, place: Place, sandbox: str) -> None:
        with self._lock:
            self._held[place, sandbox] = self._held.get((place, sandbox), 0) + 1
            if not self._beats:
                self._beats = True
                threading.Thread(target=self._beat, name="sloplet-lease", daemon=True).start()

    def release(self, place: Place, sandbox: str) -> None:
        with self._lock:
            left = self._held.pop((place, sandbox), 1) - 1
            if left > 0:
                self._held[place, sandbox] = left

    def _beat(self) -> None:
        while True:
            time.sleep(HEARTBEAT)
            with self._lock:
                held = list(self._held)
                if not held:
                    self._beats = False
                    return
            for place, sandbox in held:
                self._renew(place, sandbox)

    def _renew(self, place: Place, sandbox: str) -> None:
        from ._sync.client import Client

        try:
            client = Client.default(None if place.socket else place.url, place.key)
            client.ask("PATCH", f"/sandboxes/{sandbox}", json={"lease": f"{LEASE:.0f}s"})
        except SandboxNotFoundError:
            with self._lock:
                self._held.pop((place, sandbox), None)
        except (SandboxError, OSError):
            pass  # The next beat comes before the lease is over.


_keepers: dict[int, _Keeper] = {}


def keeper() -> _Keeper:
    """The one of this process: a forked child has no thread of its parent's."""
    return _keepers.setdefault(os.getpid(), _Keeper())
