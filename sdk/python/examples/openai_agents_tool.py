"""An agent of the OpenAI Agents SDK that runs code in a sandbox. OPENAI_API_KEY is the key; it never enters the sandbox."""

from __future__ import annotations

import asyncio
import sys

from agents import Agent, RunContextWrapper, Runner, function_tool
from sloplet import AsyncSandbox


@function_tool
async def run_python(context: RunContextWrapper[AsyncSandbox], code: str) -> str:
    """Runs Python code in a sandbox without network and returns what it prints."""
    done = await context.context.exec(["python3", "-c", code], timeout=60)
    return done.stdout + done.stderr


async def answer(question: str) -> str:
    """What the agent says. Each run has a sandbox of its own."""
    agent = Agent[AsyncSandbox](name="analyst", instructions="Compute with run_python.", model="gpt-4o-mini", tools=[run_python])
    async with await AsyncSandbox.create(image="python", memory="512MiB", ttl="10m") as sandbox:
        done = await Runner.run(agent, question, context=sandbox)
        return str(done.final_output)


if __name__ == "__main__":
    print(asyncio.run(answer(" ".join(sys.argv[1:]) or "What is 6 times 7? Use Python.")))
