"""What the methods take and give."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Union
from urllib.parse import urlsplit

from ._units import Duration, Size, shown
from .errors import CommandExecutionError, CommandTimeoutError

#: The name of the secret that stands for the token of a host of repositories.
GIT_TOKEN = "GIT_TOKEN"

#: A line for the shell, or a program and its arguments.
Command = Union[str, "list[str]", "tuple[str, ...]"]

#: Called with bytes so far and bytes in all (0 where that is not known).
ProgressCallback = Callable[[int, int], None]

#: `True` draws a bar, on a terminal.
Progress = Union[bool, ProgressCallback]

Json = dict[str, Any]


def _short(text: str, most: int = 60) -> str:
    return repr(text if len(text) <= most else text[: most - 1] + "…")


def _end(text: str, most: int = 300) -> str:
    """What a program said last: that is why it ended."""
    text = text.strip()
    return repr(text if len(text) <= most else "…" + text[1 - most :])


class SandboxMode(Enum):
    """How a sandbox is meant to be used. Here both kinds can do everything; a worker has no address of its own."""

    WORKER = "worker"
    SERVICE = "service"


class SandboxState(str, Enum):
    """Where a sandbox is in its life. `ACTIVE` and `HIBERNATED` are other names of `RUNNING` and `STOPPED`."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"
    DELETED = "deleted"
    ACTIVE = "running"
    HIBERNATED = "stopped"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and what it wrote."""

    stdout: str
    stderr: str
    exit_code: int
    #: It was killed because its time was over.
    timed_out: bool = False
    #: Some of the output was dropped: see `output_limit`.
    truncated: bool = False
    duration: float = 0.0
    #: The output as it was, where it is not text.
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""

    @property
    def success(self) -> bool:
        """Whether it ended with 0."""
        return self.exit_code == 0

    def check(self) -> CommandResult:
        """Itself, or an error if the command did not succeed."""
        if self.timed_out:
            raise CommandTimeoutError(f"the command took too long: {_end(self.stderr or self.stdout)}", self)
        if self.exit_code != 0:
            raise CommandExecutionError(f"the command ended with {self.exit_code}: {_end(self.stderr)}", self)
        return self

    def __repr__(self) -> str:
        more = ", timed_out=True" if self.timed_out else ""
        return f"CommandResult(exit_code={self.exit_code}, stdout={_short(self.stdout)}, stderr={_short(self.stderr)}{more})"


@dataclass(frozen=True)
class StreamEvent:
    """Something that a command wrote, or its end: `stdout`, `stderr`, `terminal`, `gap`, `exit` or `error`."""

    type: str
    #: Text; of `exit` the code, of `gap` how many bytes are lost, of `error` why nobody knows the code.
    data: str
    timestamp: float = field(default_factory=time.time)
    #: The bytes as they were written.
    raw: bytes = b""
    #: Where the stream goes on after this.
    offset: int = 0

    @property
    def is_output(self) -> bool:
        """Whether the command wrote it."""
        return self.type in ("stdout", "stderr", "terminal")

    @property
    def is_complete(self) -> bool:
        """Whether it is the last."""
        return self.type in ("exit", "error")

    @property
    def exit_code(self) -> int | None:
        """The code of `exit`."""
        return int(self.data) if self.type == "exit" else None

    def __repr__(self) -> str:
        return f"StreamEvent({self.type}, {_short(self.data)})"


@dataclass(frozen=True)
class ProcessInfo:
    """A process inside."""

    pid: int
    command: str
    #: `running`, or `exited`.
    status: str
    cpu: str | None = None
    memory: str | None = None
    exit_code: int | None = None
    tag: str | None = None
    #: Whether it was started through the API: only then it can be killed, and its output read.
    managed: bool = False
    arguments: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, said: Json) -> ProcessInfo:
        """As the server tells it."""
        cpu, memory = said.get("cpu_us"), said.get("rss_kib")
        words = [str(word) for word in said.get("command", [])]
        return cls(
            pid=said["pid"],
            command=words[2] if len(words) == 3 and words[:2] == ["sh", "-c"] else " ".join(words),
            status="running" if said.get("running") else "exited",
            cpu=None if cpu is None else f"{cpu / 1e6:.2f}s",
            memory=None if memory is None else shown(memory * 1024),
            exit_code=(said.get("exit") or {}).get("exit_code"),
            tag=said.get("tag"),
            managed=bool(said.get("managed")),
            arguments=words,
        )

    def __repr__(self) -> str:
        return f"ProcessInfo(pid={self.pid}, command={_short(self.command)}, status={self.status!r})"


@dataclass(frozen=True)
class FileInfo:
    """A file or folder inside."""

    name: str
    path: str
    #: `file`, `directory`, `symlink` or `other`.
    type: str
    size: int
    permissions: str
    owner: str
    group: str
    modified: float
    link_target: str | None = None

    @property
    def is_dir(self) -> bool:
        """Whether it is a folder. A link to one is not: `filesystem.is_dir()` follows links."""
        return self.type == "directory"

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.type == "file"

    @classmethod
    def of(cls, said: Json) -> FileInfo:
        """As the server tells it."""
        return cls(
            name=said["path"].rstrip("/").rsplit("/", 1)[-1] or "/",
            path=said["path"],
            type=said["kind"],
            size=said["size"],
            permissions=said["mode"],
            owner=said["owner"],
            group=said["group"],
            modified=said["modified_ms"] / 1000,
            link_target=said.get("link_target"),
        )

    def __repr__(self) -> str:
        return f"FileInfo({self.type} {self.path!r}, {self.size} bytes)"


@dataclass(frozen=True)
class FileEvent:
    """A change: `create`, `write`, `remove`, `rename`, `attributes`, or `overflow` when some were lost."""

    type: str
    #: Relative to the folder that is watched.
    path: str


@dataclass(frozen=True)
class ExposedPort:
    """A port inside, and a link to it that anybody who has it can open."""

    port: int
    url: str
    protocol: str = "http"
    created_at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class SandboxInfo:
    """What the server knows of a sandbox. `raw` has all of it."""

    id: str
    name: str | None
    state: SandboxState
    image: str
    created_at: float
    ends_at: float | None
    metadata: Mapping[str, str]
    failure: str | None
    raw: Json = field(repr=False, compare=False)

    @property
    def app_id(self) -> str:
        """Its id."""
        return self.id

    @property
    def status(self) -> str:
        """Its state, as text."""
        return self.state.value

    @classmethod
    def of(cls, said: Json) -> SandboxInfo:
        """As the server tells it."""
        ends = said.get("ends_ms")
        return cls(
            id=said["id"],
            name=said.get("name"),
            state=SandboxState(said["state"]),
            image=said["image"],
            created_at=said["created_ms"] / 1000,
            ends_at=None if ends is None else ends / 1000,
            metadata=said.get("metadata", {}),
            failure=said.get("failure"),
            raw=said,
        )


#: The name that the reference has for it.
AppInfo = SandboxInfo


@dataclass(frozen=True)
class SnapshotMetadata:
    """A saved sandbox: an image that others start from."""

    #: Its name if it has one, else its id.
    snapshot_id: str
    id: str
    created_at: float
    sandbox_image: str
    size_bytes: int
    files: int
    #: What `restore_snapshot` brings back; everything is saved whatever this says.
    paths: list[str]
    description: str | None
    tags: dict[str, str]
    #: The sandbox that was saved.
    sandbox_id: str
    #: What was left out.
    excluded: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, said: Json) -> SnapshotMetadata:
        """As the server tells it."""
        metadata = dict(said.get("metadata", {}))
        paths, description = metadata.pop("sloplet.paths", ""), metadata.pop("sloplet.description", None)
        return cls(
            snapshot_id=said.get("name") or said["id"],
            id=said["id"],
            created_at=said["created_ms"] / 1000,
            sandbox_image=said["image"],
            size_bytes=said["bytes"],
            files=said["files"],
            paths=[path for path in paths.split("\n") if path],
            description=description,
            tags=metadata,
            sandbox_id=said["sandbox"],
            excluded=said.get("excluded", []),
        )

    def __repr__(self) -> str:
        return f"SnapshotMetadata({self.snapshot_id!r}, {shown(self.size_bytes)}, of {self.sandbox_image!r})"


@dataclass(frozen=True)
class HibernatedSandbox:
    """A sandbox whose files are kept and whose processes are gone, for `wake()`."""

    sandbox_id: str
    image: str
    mode: SandboxMode = SandboxMode.SERVICE
    hibernated_at: float = field(default_factory=time.time)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionInfo:
    """A working directory and variables that stay from one command to the next."""

    id: str
    name: str | None
    shell: str
    busy: bool
    created_at: float

    @classmethod
    def of(cls, said: Json) -> SessionInfo:
        """As the server tells it."""
        return cls(said["id"], said.get("name"), said["shell"], said["busy"], said["created_ms"] / 1000)


@dataclass(frozen=True, repr=False)
class GitCredentials:
    """What a private repository wants to see, for `git_checkout`. It never enters the sandbox."""

    username: str | None = None
    token: str | None = None
    #: Not taken: a key would have to enter the sandbox.
    ssh_key: str | None = None

    def __repr__(self) -> str:
        return f"GitCredentials(username={self.username!r}, token={'…' if self.token else None})"


@dataclass(frozen=True)
class SpacesConfig:
    """Where the reference keeps large files. Here they are streamed directly: it is taken, and needed for nothing."""

    bucket: str
    region: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    endpoint: str | None = None


@dataclass(frozen=True)
class ServiceConfig:
    """How the reference's service mode is set up. Here everything in it is always on, and a port is any port."""

    api_port: int = 8080
    proxy_ports: list[int] = field(default_factory=lambda: [3000, 5000, 8000])
    enable_file_api: bool = True
    enable_sessions: bool = True
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Secret:
    """A secret that is put into requests to some hosts on their way out. Inside there is only a placeholder."""

    name: str
    value: str = field(repr=False)
    hosts: list[str]
    header: str | None = None
    query: str | None = None
    body: bool = False
    prefix: str | None = None
    http: bool = False
    #: In every request, as the password of this user: programs inside need not know of it.
    basic: str | None = None

    @classmethod
    def git(cls, url: str, token: str, username: str | None = None, *, name: str = GIT_TOKEN) -> Secret:
        """The token of a host of repositories, by an address of one: `git` inside clones, fetches and pushes without it.

        A sandbox with tokens of several hosts needs several names.
        """
        host = urlsplit(url).netloc.rpartition("@")[2] if "://" in url else url
        return cls(name, token, [host], basic=username or "x-access-token")

    def to_json(self) -> Json:
        """As the server takes it."""
        said: Json = {"name": self.name, "value": self.value, "hosts": self.hosts}
        for name in ("header", "query", "body", "prefix", "http", "basic"):
            if value := getattr(self, name):
                said[name] = value
        return said


@dataclass(frozen=True)
class FileChange:
    """A path that is not what it was when the sandbox was made."""

    path: str
    #: `added`, `modified`, `mode` (or owner) or `deleted`.
    change: str
    #: `file`, `directory`, `symlink` or `other`.
    kind: str
    kind_before: str | None = None
    mode: str | None = None
    mode_before: str | None = None
    size: int | None = None
    size_before: int | None = None
    #: The path as it is.
    path_bytes: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, said: Json) -> FileChange:
        """From what the server says."""
        exact = said.get("path_base64")
        known = {name: said.get(name) for name in ("kind_before", "mode", "mode_before", "size", "size_before")}
        path_bytes = base64.b64decode(exact) if exact else said["path"].encode()
        return cls(said["path"], said["change"], said["kind"], path_bytes=path_bytes, **known)


@dataclass(frozen=True)
class NetworkRules:
    """What a sandbox may reach; nothing unless said. Rules are like `api.github.com`, `*.example.com:443`, `10.0.0.0/8:*`."""

    allow: list[str] = field(default_factory=list)
    deny: list[str] = field(default_factory=list)
    #: A person is asked about these: see `Client.approvals()`.
    ask: list[str] = field(default_factory=list)
    #: Ports of the host's loopback, inside as `host.sloplet.internal`.
    host_ports: list[int] = field(default_factory=list)
    internet: bool = False
    ipv6: bool = False
    #: Limits of traffic, as the API writes them.
    limits: Json | None = field(default=None, repr=False)

    def to_json(self) -> Json:
        """As the server takes it."""
        said: Json = {
            "allow": list(self.allow),
            "deny": list(self.deny),
            "ask": list(self.ask),
            "host_ports": list(self.host_ports),
            "internet": self.internet,
            "ipv6": self.ipv6,
        }
        return said if self.limits is None else {**said, "limits": self.limits}

    @classmethod
    def of(cls, said: Json) -> NetworkRules:
        """As the server tells it."""
        known = {name: said[name] for name in cls.__dataclass_fields__ if name in said}
        return cls(**known)


@dataclass(frozen=True)
class NetworkStatus:
    """A sandbox's rules, and what went through."""

    rules: NetworkRules
    allowed: int
    denied: int
    bytes_up: int
    bytes_down: int
    raw: Json = field(repr=False, compare=False)

    @classmethod
    def of(cls, said: Json) -> NetworkStatus:
        """As the server tells it."""
        traffic = said["traffic"]
        counts: dict[str, int] = {name: traffic[name] for name in ("allowed", "denied", "bytes_up", "bytes_down")}
        return cls(rules=NetworkRules.of(said["rules"]), **counts, raw=said)


@dataclass(frozen=True)
class Budget:
    """What a sandbox may use up. What is not given is not bounded."""

    usd: float | str | None = None
    tokens: int | None = None
    requests_per_minute: int | None = None
    exec_per_minute: int | None = None
    egress_bytes: Size | None = None
    #: Sandboxes of the same group spend from one pot.
    group: str | None = None
    #: `deny`, `pause` or `kill`.
    at_cap: str = "deny"

    def to_json(self) -> Json:
        """As the server takes it."""
        from ._units import size

        said: Json = {"at_cap": self.at_cap}
        if self.usd is not None:
            said["usd"] = self.usd if isinstance(self.usd, str) else f"{self.usd:.6f}"
        if self.egress_bytes is not None:
            said["egress_bytes"] = size(self.egress_bytes)
        for name in ("tokens", "requests_per_minute", "exec_per_minute", "group"):
            if (value := getattr(self, name)) is not None:
                said[name] = value
        return said


@dataclass(frozen=True)
class Spent:
    """What a sandbox has used of its budget."""

    usd: float
    tokens: int
    calls: int
    reserved_usd: float
    budget: Json

    @classmethod
    def of(cls, said: Json) -> Spent:
        """As the server tells it."""
        usd, reserved = said["micro_usd"] / 1e6, said["reserved_micro_usd"] / 1e6
        return cls(usd, said["tokens"], said["calls"], reserved, said["budget"])


@dataclass(frozen=True)
class Cost:
    """What was used and what that costs, in dollars."""

    total_usd: float
    compute_usd: float
    tokens_usd: float
    running_seconds: float
    calls: int
    raw: Json = field(repr=False, compare=False)

    @classmethod
    def of(cls, said: Json) -> Cost:
        """As the server tells it."""
        total = said["total"]
        return cls(
            total_usd=total["total_micro_usd"] / 1e6,
            compute_usd=total["compute_micro_usd"] / 1e6,
            tokens_usd=total["tokens_micro_usd"] / 1e6,
            running_seconds=total["running_ms"] / 1000,
            calls=total["calls"],
            raw=said,
        )


@dataclass(frozen=True)
class AuditRecord:
    """Something that happened, as the ledger has it."""

    seq: int
    time: float
    kind: str
    sandbox: str | None
    actor: str
    event: Json
    hash: str
    prev: str

    @classmethod
    def of(cls, said: Json) -> AuditRecord:
        """As the server tells it."""
        event = said["event"]
        return cls(
            seq=said["seq"],
            time=said["time_ms"] / 1000,
            kind=event.get("kind", ""),
            sandbox=said.get("sandbox"),
            actor=said["actor"],
            event=event,
            hash=said["hash"],
            prev=said["prev"],
        )

    def __repr__(self) -> str:
        return f"AuditRecord({self.seq}, {self.kind!r}, sandbox={self.sandbox!r}, actor={self.actor!r})"


@dataclass(frozen=True)
class LedgerReport:
    """Whether the ledger is whole."""

    sound: bool
    problems: list[str]
    raw: Json = field(repr=False, compare=False)


@dataclass(frozen=True)
class VerifyReport:
    """What `sloplet verify` found of one wall."""

    passed: bool
    driver: str
    probes: dict[str, str]
    raw: Json = field(repr=False, compare=False)


@dataclass(frozen=True)
class VolumeInfo:
    """A folder that outlives sandboxes."""

    id: str
    name: str
    created_at: float
    size: str | None = None

    @classmethod
    def of(cls, said: Json) -> VolumeInfo:
        """As the server tells it."""
        return cls(said["id"], said["name"], said["created_ms"] / 1000, said.get("size"))


@dataclass(frozen=True)
class Usage:
    """What a sandbox uses right now."""

    cpu_seconds: float
    memory_bytes: int
    memory_limit_bytes: int
    disk_bytes: int
    disk_limit_bytes: int
    pids: int
    raw: Json = field(repr=False, compare=False)

    @classmethod
    def of(cls, said: Json) -> Usage:
        """As the server tells it."""
        names = ("memory_bytes", "memory_limit_bytes", "disk_bytes", "disk_limit_bytes", "pids")
        counts: dict[str, int] = {name: said[name] for name in names}
        return cls(cpu_seconds=said["cpu_us"] / 1e6, **counts, raw=said)


__all__ = [
    "AppInfo",
    "AuditRecord",
    "Budget",
    "Command",
    "CommandResult",
    "Cost",
    "Duration",
    "ExposedPort",
    "FileChange",
    "FileEvent",
    "FileInfo",
    "GitCredentials",
    "HibernatedSandbox",
    "LedgerReport",
    "NetworkRules",
    "NetworkStatus",
    "ProcessInfo",
    "Progress",
    "ProgressCallback",
    "SandboxInfo",
    "SandboxMode",
    "SandboxState",
    "Secret",
    "ServiceConfig",
    "SessionInfo",
    "Size",
    "SnapshotMetadata",
    "SpacesConfig",
    "Spent",
    "StreamEvent",
    "Usage",
    "VerifyReport",
    "VolumeInfo",
]
