"""Local files that appear when they are whole, or not at all: also if this program is killed meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole(local: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `local` in the end."""
    draft = local.with_name(f".{local.name}.{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = _nameless(local.parent)
    nameless = descriptor is not None
    if descriptor is None:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            yield file
            if nameless:
                # With a folder, so that the link is followed; the path is absolute, so it does not matter which.
                os.link(f"/proc/self/fd/{descriptor}", draft, src_dir_fd=descriptor, follow_symlinks=True)
        os.replace(draft, local)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _nameless(folder: Path) -> int | None:
    """A file without a name, which is gone with whoever has it open; `None` where there can be none."""
    kind = getattr(os, "O_TMPFILE", 0)
    if not kind or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, os.O_WRONLY | os.O_CLOEXEC | kind, 0o666)
    except OSError:
        return None  # What is wrong with the folder, if anything, is told when a name is tried.
