"""Disposable, contained machines for AI agents.

>>> from sloplet import Sandbox
>>> with Sandbox.create() as sandbox:
...     print(sandbox.exec("echo hello").stdout)
"""

from . import errors, types
from ._async.client import AsyncClient
from ._async.filesystem import AsyncFileSystem
from ._async.processes import AsyncProcess, AsyncProcessManager, AsyncSession, AsyncTerminal
from ._async.sandbox import AsyncSandbox
from ._async.service import AsyncServiceClient
from ._async.snapshots import AsyncSnapshotManager
from ._sync.client import Client
from ._sync.filesystem import FileSystem
from ._sync.processes import Process, ProcessManager, Session, Terminal
from ._sync.sandbox import Sandbox
from ._sync.service import ServiceClient
from ._sync.snapshots import SnapshotManager
from .errors import *  # noqa: F403
from .errors import ConnectionError as ConnectionError
from .manager import PoolConfig, PoolMetrics, SandboxManager
from .sandboxed import sandboxed
from .types import *  # noqa: F403

# As the reference calls them.
SandboxServiceClient, AsyncSandboxServiceClient = ServiceClient, AsyncServiceClient

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncFileSystem",
    "AsyncProcess",
    "AsyncProcessManager",
    "AsyncSandbox",
    "AsyncSandboxServiceClient",
    "AsyncServiceClient",
    "AsyncSession",
    "AsyncSnapshotManager",
    "AsyncTerminal",
    "Client",
    "FileSystem",
    "PoolConfig",
    "PoolMetrics",
    "Process",
    "ProcessManager",
    "Sandbox",
    "SandboxManager",
    "SandboxServiceClient",
    "ServiceClient",
    "Session",
    "SnapshotManager",
    "Terminal",
    "sandboxed",
]
__all__ += errors.__all__
__all__ += types.__all__
