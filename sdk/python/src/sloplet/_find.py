"""Where the server is, and the binary that starts one: as the command line finds them."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .errors import InvalidRequestError, ServerStartError, ServiceConnectionError

#: The server's socket within its run folder.
SOCKET = "api.sock"

#: Bytes of a socket's path that the kernel takes.
LONGEST_PATH = 107


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


def data_folder() -> Path:
    """Where this user's own server keeps what lasts."""
    if given := variable("SLOPLET_DATA"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/sloplet")
    if shared := variable("XDG_DATA_HOME"):
        return Path(shared) / "sloplet"
    if home := variable("HOME"):
        return Path(home) / ".local/share/sloplet"
    return Path(f"/var/tmp/sloplet-{os.geteuid()}")


def run_folders() -> Path:
    """Where the run folders of all data folders are."""
    if given := variable("SLOPLET_RUN"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/run/sloplet")
    if runtime := variable("XDG_RUNTIME_DIR"):
        return Path(runtime) / "sloplet"
    return Path(f"/tmp/sloplet-{os.geteuid()}")


def run_folder() -> Path:
    """Where the server of the data folder has its socket: every data folder has a server of its own."""
    data = data_folder()
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = data.stat()
    except OSError as error:
        raise ServerStartError(f"cannot use the data folder {data}: {error.strerror}", hint="set SLOPLET_DATA") from error
    return run_folders() / f"{found.st_dev:x}-{found.st_ino:x}"


class Door:
    """How a server's socket is named to the kernel. A folder that lies too deep is named by a descriptor, as long as this lives."""

    def __init__(self, server: Place) -> None:
        self._folder: int | None = None
        #: The path to connect to; none if the server is not this user's own.
        self.address = server.socket
        if server.socket is None or len(os.fsencode(server.socket)) <= LONGEST_PATH:
            return
        folder = Path(server.socket).parent
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ServerStartError(f"cannot use the run folder {folder}: {error.strerror}", hint="set SLOPLET_RUN") from error
        self.address = f"/proc/self/fd/{self._folder}/{SOCKET}"

    def __del__(self) -> None:
        if self._folder is not None:
            os.close(self._folder)


def check_private(server: Place) -> None:
    """Refuses a run folder that another user has made, or can enter: he would get what is sent there."""
    if server.socket is None:
        return
    folder = Path(server.socket).parent
    for each in (folder.parent, folder):
        try:
            found = os.lstat(each)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode):
            wrong = "is not a folder"
        elif found.st_uid != os.geteuid():
            wrong = f"belongs to user {found.st_uid}, not to you (user {os.geteuid()})"
        elif found.st_mode & 0o077:
            wrong = "can be entered by other users (its mode is not 0700)"
        else:
            continue
        raise ServiceConnectionError(
            f"{each} {wrong}: nothing was sent there", hint="remove it, or set SLOPLET_RUN to a folder of yours"
        )


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
