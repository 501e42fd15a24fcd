"""Where the server is, and the binary that starts one: as the command line finds them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .errors import InvalidRequestError, ServerStartError

#: The server's socket within its run folder.
SOCKET = "api.sock"


@dataclass(frozen=True)
class Place:
    """A server's address."""

    #: What requests begin with.
    url: str
    #: The Unix socket, if it is this user's own server.
    socket: str | None
    key: str | None

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine."""
        return self.socket is not None or urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")

    def __repr__(self) -> str:
        return f"Place({self.socket or self.url!r})"


def variable(name: str) -> str | None:
    """An environment variable that says something."""
    return os.environ.get(name) or None


def run_folder() -> Path:
    """Where this user's own server has its socket."""
    if given := variable("SLOPLET_RUN"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/run/sloplet")
    if runtime := variable("XDG_RUNTIME_DIR"):
        return Path(runtime) / "sloplet"
    return Path(f"/tmp/sloplet-{os.geteuid()}")


def place(url: str | None, key: str | None) -> Place:
    """The server that is meant: the one named, the one in `SLOPLET_URL`, or this user's own."""
    key = key or variable("SLOPLET_API_KEY")
    url = url or variable("SLOPLET_URL")
    if url is None:
        return Place("http://localhost", str(run_folder() / SOCKET), key)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequestError(f"'{url}' is not a server's address", hint="write it like http://127.0.0.1:7070")
    return Place(url.rstrip("/"), None, key)


def binary() -> str:
    """The sloplet binary: `SLOPLET_BINARY`, on the `PATH`, or shipped with this package."""
    if given := variable("SLOPLET_BINARY"):
        if not os.access(given, os.X_OK):
            raise ServerStartError(f"SLOPLET_BINARY is '{given}', which cannot be executed")
        return given
    bundled = Path(__file__).parent / "bin" / "sloplet"
    found = shutil.which("sloplet") or (str(bundled) if os.access(bundled, os.X_OK) else None)
    if found is None:
        raise ServerStartError("no server runs here, and there is no sloplet binary to start one with")
    return found
