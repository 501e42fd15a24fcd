"""Which languages there are and how their kernels start."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from interpreter.http11 import HttpError

HERE = Path(__file__).resolve().parent
ALIASES = {"js": "javascript", "ts": "typescript", "py": "python", "python3": "python", "sh": "bash", "shell": "bash"}

# A program that a language needs besides Python.
NEEDS = {"bash": "bash", "javascript": "node", "typescript": "node"}


def normalize(language: str | None) -> str:
    """The language's own name; raises when there is no such language here."""
    name = (language or "python").strip().lower()
    name = ALIASES.get(name, name)
    if name not in known():
        shown = "".join(c for c in name[:40] if c.isprintable())
        raise HttpError(400, f"The language '{shown}' is not supported here; there are: {', '.join(known())}")
    return name


def known() -> list[str]:
    """Every language whose program is installed."""
    return [name for name in ("python", "bash", "javascript", "typescript") if available(name)]


def available(language: str) -> bool:
    """Whether the program of this language is installed."""
    program = NEEDS.get(language)
    return program is None or shutil.which(program) is not None


class OwnKernels(KernelSpecManager):
    """Kernels named by their language; what else is installed in the system does not matter."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """How the kernel of a language is started."""
        # Jupyter has its own other name for Python's kernel.
        script = {"bash": "bash.py", "javascript": "node.py", "typescript": "node.py"}.get(kernel_name, "python.py")
        argv = [sys.executable, str(HERE / "kernels" / script), "-f", "{connection_file}"]
        if kernel_name == "typescript":
            argv.append("--NodeKernel.typescript=True")
        return KernelSpec(argv=argv, display_name=kernel_name, language=kernel_name, interrupt_mode="signal")
