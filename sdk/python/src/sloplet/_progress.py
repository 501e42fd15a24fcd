"""How far a transfer is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator

from ._units import shown
from .types import Progress

#: Seconds between two drawings.
PACE = 0.1


class Meter:
    """Tells a callback, or draws a line on standard error if that is a terminal."""

    def __init__(self, progress: Progress, label: str, total: int = 0) -> None:
        self.total, self.done = total, 0
        self._callback = None if isinstance(progress, bool) else progress
        self._draws = progress is True and sys.stderr.isatty()
        self._label, self._started, self._drawn = label, time.monotonic(), 0.0

    def add(self, count: int) -> None:
        """So many bytes more."""
        self.done += count
        if self._callback:
            self._callback(self.done, self.total)
        if self._draws and (now := time.monotonic()) - self._drawn > PACE:
            self._drawn = now
            self._draw(now)

    def start_over(self) -> None:
        """What was counted does not count."""
        self.done = 0

    def finish(self) -> None:
        """Nothing more follows."""
        if self._draws:
            self._draw(time.monotonic())
            sys.stderr.write("\n")

    def through(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """The same parts, counted."""
        for part in parts:
            yield part
            self.add(len(part))

    def _draw(self, now: float) -> None:
        rate = self.done / max(now - self._started, 1e-6)
        share = min(self.done / self.total, 1.0) if self.total else 0.0
        bar = "█" * round(share * 24)
        of = f" of {shown(self.total)}" if self.total else ""
        sys.stderr.write(f"\r\x1b[K{self._label} {bar:<24}| {shown(self.done)}{of}, {shown(rate)}/s")
        sys.stderr.flush()
