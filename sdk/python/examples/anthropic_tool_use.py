"""Claude runs code in a sandbox, by tool use. ANTHROPIC_API_KEY is the key; it never enters the sandbox."""

from __future__ import annotations

import sys
from typing import Any

import anthropic
from sloplet import Sandbox

TOOL: Any = {
    "name": "run_python",
    "description": "Runs Python code in a sandbox without network and returns what it prints. Files in /app stay between calls.",
    "input_schema": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
}


def answer(question: str, model: str = "claude-haiku-4-5") -> str:
    """What the model says once it needs no more code."""
    client = anthropic.Anthropic()
    messages: list[Any] = [{"role": "user", "content": question}]
    with Sandbox.create(image="python", memory="512MiB", ttl="10m") as sandbox:
        while True:
            said = client.messages.create(model=model, max_tokens=1024, tools=[TOOL], messages=messages)
            if said.stop_reason != "tool_use":
                return "".join(block.text for block in said.content if block.type == "text")
            results = []
            for block in said.content:
                if block.type == "tool_use":
                    done = sandbox.exec(["python3", "-c", str(dict(block.input)["code"])], timeout=60)
                    text = done.stdout + done.stderr
                    results.append({"type": "tool_result", "tool_use_id": block.id, "content": text, "is_error": not done.success})
            messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": results}]


if __name__ == "__main__":
    print(answer(" ".join(sys.argv[1:]) or "What is 6 times 7? Use Python."))
