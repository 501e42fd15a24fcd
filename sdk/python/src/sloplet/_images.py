"""What the images `python` and `node` are here: the reference has them, with a folder that its examples use."""

from __future__ import annotations

#: Images that have the language; the first that is stored is taken, else the host's own programs.
WELL_KNOWN = {
    "python": ("python", "base", "code-interpreter"),
    "node": ("node", "code-interpreter"),
}

#: The folder, also known as `/home/sandbox/app`.
WORKSPACE = "/app"

#: Where programs are looked for on the host's image, which has no `python`.
SEARCH_PATH = "/home/sandbox/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Run by root in a new sandbox. Inside, nothing is anybody's system: everybody may write there.
PREPARE = """
umask 0
mkdir -p /home/sandbox/app /home/sandbox/.local/bin && ln -sfn /home/sandbox/app /app
[ -e /workspace ] || ln -sfn /home/sandbox/app /workspace
command -v python >/dev/null || ln -sfn "$(command -v python3)" /home/sandbox/.local/bin/python
"""
