"""Starts the server: `python3 -I <this directory>`."""

import sys
from pathlib import Path

# Python puts this directory first, where our module names could shadow others; the package is found one level up.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from interpreter.server import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
