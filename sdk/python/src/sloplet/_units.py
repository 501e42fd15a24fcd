"""Times and sizes as the API writes them."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Union

#: Seconds, or text like `"90s"`, `"15m"`, `"2h"`.
Duration = Union[int, float, str, timedelta]

#: Bytes, or text like `"512MiB"`.
Size = Union[int, str]


def duration(value: Duration) -> str:
    """A time, rounded up to what can be written with five digits."""
    if isinstance(value, str):
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not seconds > 0 or math.isinf(seconds):
        raise ValueError(f"a time must be more than nothing and end some day, not {value!r}")
    for unit, length in (("ms", 0.001), ("s", 1), ("m", 60), ("h", 3600)):
        count = math.ceil(round(seconds / length, 6))
        if count <= 99_999 and (unit != "ms" or seconds < 10 and seconds != int(seconds)):
            return f"{max(count, 1)}{unit}"
    return f"{math.ceil(seconds / 86400)}d"


def seconds(value: Duration) -> float:
    """A time in seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        parts = re.findall(r"([0-9.]+)\s*(ms|s|m|h|d)", value)
        if not parts:
            raise ValueError(f"'{value}' is not a time: write seconds, or text like '90s' or '2h'")
        return sum(float(n) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for n, unit in parts)
    return float(value)


def size(value: Size) -> str:
    """A size, rounded up to KiB, MiB or GiB."""
    if isinstance(value, str):
        return value
    if value <= 0:
        raise ValueError(f"a size must be more than nothing, not {value!r}")
    for unit, length in (("KiB", 1024), ("MiB", 1024**2), ("GiB", 1024**3)):
        count = math.ceil(value / length)
        if count <= 999_999 and (value % (length * 1024) or unit == "GiB"):
            return f"{count}{unit}"
    return f"{math.ceil(value / 1024**4)}TiB"


def machine(instance_size: str) -> dict[str, object]:
    """What a size of App Platform's means here: `apps-s-1vcpu-2gb` is one processor and 2 GiB."""
    match = re.search(r"(\d+)vcpu-(\d+(?:\.\d+)?)gb", instance_size)
    if not match:
        raise ValueError(f"'{instance_size}' names no size: use cpus= and memory=, or a name like apps-s-1vcpu-1gb")
    return {"cpus": float(match[1]), "memory": size(int(float(match[2]) * 1024**3))}


def shown(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""
