"""Writes the synchronous half of the package: every file of `_async`, with what waits taken out.

There is one implementation. `python unasync.py` writes `src/sloplet/_sync`; the build does the same (hatch_build.py).
"""

from __future__ import annotations

import pathlib
import re
import sys

HEADER = "# Written by unasync.py from ../_async/{name}: change that file, not this one.\n"

#: What is not the same word without `Async`.
WORDS = {
    "AsyncExitStack": "ExitStack",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "_async": "_sync",
    "_platform_async": "_platform_sync",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aiter_raw": "iter_raw",
    "aread": "read",
    "asynccontextmanager": "contextmanager",
}


def word(match: re.Match[str]) -> str:
    """The same word for those who do not wait."""
    found = match.group()
    if found in WORDS:
        return WORDS[found]
    return found.removeprefix("Async") if re.match(r"Async[A-Z]", found) else found


def unasync(text: str) -> str:
    """The synchronous form of a file."""
    text = re.sub(r"\basync (def|with|for)\b", r"\1", text)
    text = re.sub(r"\bawait ", "", text)
    return re.sub(r"\b_?\w+\b", word, text)


def generate(package: pathlib.Path) -> list[pathlib.Path]:
    """Writes all files; returns them."""
    target = package / "_sync"
    target.mkdir(exist_ok=True)
    written = []
    for source in sorted((package / "_async").glob("*.py")):
        path = target / source.name
        path.write_text(HEADER.format(name=source.name) + unasync(source.read_text()))
        written.append(path)
    for stale in set(target.glob("*.py")) - set(written):
        stale.unlink()
    return written


if __name__ == "__main__":
    root = pathlib.Path(__file__).parent
    for one in generate(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "src/sloplet"):
        print(one)
