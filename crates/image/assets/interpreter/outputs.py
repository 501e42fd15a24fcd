"""Turns messages of a kernel into the lines that clients read."""

from __future__ import annotations

import time
from typing import Any

Line = dict[str, Any]

FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}

END: Line = {"type": "end_of_execution"}
KEEPALIVE: Line = {"type": "keepalive"}


def from_message(kind: str, content: dict[str, Any]) -> Line | None:
    """The line for a message, or None for messages that clients do not hear of."""
    if kind == "stream" and content.get("name") in ("stdout", "stderr"):
        return stream(content["name"], str(content.get("text", "")))
    if kind in ("display_data", "execute_result"):
        return result(content.get("data", {}), is_main=kind == "execute_result")
    if kind == "error":
        return error(
            str(content.get("ename", "")),
            str(content.get("evalue", "")),
            "\n".join(str(line) for line in content.get("traceback", [])),
        )
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content.get("execution_count", 0)}
    return None


def stream(name: str, text: str) -> Line:
    """Something printed, with the time in nanoseconds since 1970."""
    return {"type": name, "text": text, "timestamp": time.time_ns()}


def error(name: str, value: str, traceback: str) -> Line:
    """An exception, or what comes nearest to it in the language."""
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def result(bundle: dict[str, Any], is_main: bool) -> Line:
    """A value in all its representations."""
    line: Line = {"type": "result", "is_main_result": is_main}
    extra = {}
    for mime, value in bundle.items():
        field = FIELDS.get(mime)
        if field is None:
            extra[mime] = value
        elif value is not None and value != {}:
            line[field] = value
    text = line.get("text")
    # A string is shown as itself, not as its source: that is what clients of this protocol expect.
    if isinstance(text, str) and len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        line["text"] = text[1:-1]
    if extra:
        line["extra"] = extra
    return line
