"""The kernel for Python: ipykernel, with what `sloplet_display` adds to it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)

# A debugger that nobody can reach costs a third of the time to start.
sys.modules["debugpy"] = None  # type: ignore[assignment]
from ipykernel.ipkernel import IPythonKernel  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402
from traitlets.config import Config  # noqa: E402

del sys.modules["debugpy"]

import sloplet_display  # noqa: E402


class PythonKernel(IPythonKernel):
    """As ipykernel makes it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        sloplet_display.install(self.shell)


def main() -> None:
    """The program."""
    config = Config()
    # The history would be a database in the home directory, shared by all kernels.
    config.HistoryManager.enabled = False
    config.IPKernelApp.log_level = "ERROR"
    # Long lists are shown in full.
    config.PlainTextFormatter.max_seq_length = 0
    # Code finds modules in its working directory, not in ours.
    sys.path[:] = ["", *(entry for entry in sys.path if entry != HERE)]
    IPKernelApp.launch_instance(kernel_class=PythonKernel, config=config)


if __name__ == "__main__":
    main()
