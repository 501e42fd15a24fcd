"""A LangChain tool that runs code in a sandbox. OPENAI_API_KEY is the key; it never enters the sandbox."""

from __future__ import annotations

import sys

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langchain_openai import ChatOpenAI
from sloplet import Sandbox


def python_tool(sandbox: Sandbox) -> BaseTool:
    """A tool for any model or agent of LangChain's."""

    @tool
    def run_python(code: str) -> str:
        """Runs Python code in a sandbox without network and returns what it prints."""
        done = sandbox.exec(["python3", "-c", code], timeout=60)
        return done.stdout + done.stderr

    return run_python


def answer(question: str) -> str:
    """What the model says once it needs no more code."""
    with Sandbox.create(image="python", memory="512MiB", ttl="10m") as sandbox:
        run_python = python_tool(sandbox)
        model = ChatOpenAI(model="gpt-4o-mini").bind_tools([run_python])
        messages: list[BaseMessage] = [HumanMessage(question)]
        while True:
            said = model.invoke(messages)
            messages.append(said)
            if not said.tool_calls:
                return str(said.content)
            messages += [run_python.invoke(call) for call in said.tool_calls]


if __name__ == "__main__":
    print(answer(" ".join(sys.argv[1:]) or "What is 6 times 7? Use Python."))
