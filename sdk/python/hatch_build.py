"""What the build does besides copying files."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, os.path.dirname(__file__))

import unasync  # noqa: E402


class Hook(BuildHookInterface[Any]):
    """Writes the synchronous half and, where `SLOPLET_BUNDLE` names the binary, ships that, too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        unasync.generate(pathlib.Path(self.root) / "src/sloplet")
        binary = os.environ.get("SLOPLET_BUNDLE")
        if binary and self.target_name == "wheel":
            build_data["force_include"][os.path.abspath(binary)] = "sloplet/bin/sloplet"
            build_data["pure_python"] = False
            # A static program for Linux: it goes with any Python there.
            build_data["tag"] = f"py3-none-linux_{os.uname().machine}"
