"""What can go wrong. Everything is a `SandboxError`; `hint` says what to do where something can be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .types import CommandResult


class SandboxError(Exception):
    """Something did not work."""

    #: What to do about it, unless the error itself knows better.
    usual_hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.usual_hint
        self.status = status

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ServiceConnectionError(SandboxError):
    """No server answers, or the connection to it broke and did not come back."""

    usual_hint = "start one with 'sloplet serve', or name one in SLOPLET_URL"


class ServerStartError(ServiceConnectionError):
    """No server runs, and none could be started."""

    usual_hint = "SLOPLET_BINARY names the sloplet binary; 'sloplet serve' shows what is wrong"


class AuthenticationError(SandboxError):
    """The key is missing, unknown, or may not do this."""

    usual_hint = "SLOPLET_API_KEY or api_token= is the key; 'sloplet key create' makes one"


class InvalidRequestError(SandboxError):
    """What was asked for makes no sense, or cannot be had on this host."""


class NotFoundError(SandboxError):
    """There is no such thing."""


class SandboxNotFoundError(NotFoundError):
    """There is no such sandbox: it never was, was deleted, or its time was over."""

    usual_hint = "Sandbox.list() tells which there are; ttl= says how long one lives"


class SnapshotError(SandboxError):
    """A snapshot could not be used."""


class SnapshotNotFoundError(NotFoundError, SnapshotError):
    """There is no such snapshot."""


class SnapshotRestoreError(SnapshotError):
    """What a snapshot holds could not be brought back into a sandbox."""


class ConflictError(SandboxError):
    """Something is in the way: a name that is taken, a sandbox that is paused."""


class HibernationError(SandboxError):
    """A sandbox could not be put to sleep."""


class SandboxHibernatedError(HibernationError, ConflictError):
    """The sandbox is paused or stopped: nothing runs in it."""

    usual_hint = "resume(), or Sandbox.wake(), lets it go on"


class QuotaError(SandboxError):
    """The key has as much as it may have, or a budget is used up."""


class SandboxCreationError(SandboxError):
    """A sandbox could not be made."""


class SandboxNotReadyError(SandboxError):
    """A sandbox was not ready in time, or never will be."""


class CommandExecutionError(SandboxError):
    """A command that was to succeed did not. `result` is what came of it."""

    def __init__(self, message: str, result: CommandResult) -> None:
        super().__init__(message)
        self.result = result


class CommandTimeoutError(CommandExecutionError):
    """A command took too long and was killed. `result` has what it wrote until then."""

    usual_hint = "timeout= gives it more time; launch_process() lets it run in the background"


class FileOperationError(SandboxError):
    """A file could not be read, written or moved."""


class NoSuchFileError(FileOperationError, NotFoundError, FileNotFoundError):
    """There is no such file or folder inside."""


class FilePermissionError(FileOperationError, PermissionError):
    """The user inside may not do that with this file."""

    usual_hint = "user='root' may more, where the image has it"


class IsFolderError(FileOperationError, IsADirectoryError):
    """A folder, where a file is needed."""


class TransferError(FileOperationError):
    """A transfer broke off. Nothing half-written was left."""


class RemoteError(SandboxError):
    """A function that ran in a sandbox raised. `type_name` and `traceback` tell what; both come from inside."""

    def __init__(self, type_name: str, message: str, traceback: str) -> None:
        super().__init__(f"{type_name}: {message}")
        self.type_name = type_name
        self.traceback = traceback


class PoolError(SandboxError):
    """A pool cannot give a sandbox."""


class PoolExhaustedError(PoolError):
    """None is ready and none may be made."""

    usual_hint = "raise target_ready or max_total_sandboxes, or use on_empty='create'"


class PoolShutdownError(PoolError):
    """The manager is not running."""

    usual_hint = "await manager.start() first, and acquire nothing after shutdown()"


class WarmUpTimeoutError(PoolError):
    """The pools were not filled in time."""


def _of_files(path: str) -> bool:
    return "/files" in path or "/archive" in path


def of_status(status: int, message: str, path: str = "") -> SandboxError:
    """The error of a refused request."""
    kind: type[SandboxError] = SandboxError
    if status in (401, 403):
        inside = status == 403 and _of_files(path) and not message.startswith("this key ")
        kind = FilePermissionError if inside else AuthenticationError
    elif status == 404:
        if _of_files(path):
            kind = SandboxNotFoundError if message.startswith("sandbox ") else NoSuchFileError
        elif "/snapshots/" in path:
            kind = SnapshotNotFoundError
        elif path.startswith("/sandboxes/") and path.count("/") == 2:
            kind = SandboxNotFoundError
        else:
            kind = SandboxNotFoundError if message.startswith("sandbox ") else NotFoundError
    elif status == 409:
        sleeps = path.startswith("/sandboxes/") and (" is paused" in message or " is stopped" in message)
        kind = SandboxHibernatedError if sleeps else ConflictError
    elif status == 429:
        kind = QuotaError
    elif status in (408, 507):
        kind = FileOperationError
    elif status in (400, 405, 413, 415, 422, 501):
        kind = FileOperationError if _of_files(path) else InvalidRequestError
        if _of_files(path) and ("is a folder" in message or "Is a directory" in message):
            kind = IsFolderError
    return kind(message, status=status)


# The reference's names for what happens here as well, or instead. `ConnectionError` is not in `__all__`: Python has one.
ConnectionError = ServiceModeError = ServiceNotAvailableError = ServiceConnectionError
ImageNotValidatedError = ImageValidationError = SandboxCreationError
SnapshotUploadError = SnapshotError
SpacesNotConfiguredError = ConflictError

__all__ = [
    "AuthenticationError",
    "CommandExecutionError",
    "CommandTimeoutError",
    "ConflictError",
    "FileOperationError",
    "FilePermissionError",
    "HibernationError",
    "ImageNotValidatedError",
    "ImageValidationError",
    "InvalidRequestError",
    "IsFolderError",
    "NoSuchFileError",
    "NotFoundError",
    "PoolError",
    "PoolExhaustedError",
    "PoolShutdownError",
    "QuotaError",
    "RemoteError",
    "SandboxCreationError",
    "SandboxError",
    "SandboxHibernatedError",
    "SandboxNotFoundError",
    "SandboxNotReadyError",
    "ServerStartError",
    "ServiceConnectionError",
    "ServiceModeError",
    "ServiceNotAvailableError",
    "SnapshotError",
    "SnapshotNotFoundError",
    "SnapshotRestoreError",
    "SnapshotUploadError",
    "SpacesNotConfiguredError",
    "TransferError",
    "WarmUpTimeoutError",
]
