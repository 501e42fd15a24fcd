"""An agent that calls LLMs with the vendors' own packages, as far as they are there, and without."""

import json
import os
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

ASK = {"model": "claude-haiku-4-5", "max_tokens": 200, "messages": [{"role": "user", "content": "Say hello"}]}
CHAT = {"model": "gpt-4o-mini", "max_completion_tokens": 200, "messages": ASK["messages"]}


def call():
    """One call; its status."""
    headers = {"Authorization": "Bearer " + os.environ["ANTHROPIC_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request("https://api.anthropic.com/v1/messages", json.dumps(ASK).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()  # what nobody waits for is paid as if it had been as long as it may
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def packages():
    """Both packages, plain and streaming."""
    import anthropic
    import openai

    claude, gpt = anthropic.Anthropic(), openai.OpenAI()
    with claude.messages.stream(**ASK) as stream:
        streamed = "".join(stream.text_stream)
    chunks = gpt.chat.completions.create(**CHAT, stream=True)
    return {
        "anthropic": claude.messages.create(**ASK).content[0].text,
        "anthropic stream": streamed,
        "openai": gpt.chat.completions.create(**CHAT).choices[0].message.content,
        "openai stream": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "keys": [os.environ["ANTHROPIC_API_KEY"], os.environ["OPENAI_API_KEY"]],
    }


def loop():
    """Never stops by itself."""
    import anthropic

    client, answers = anthropic.Anthropic(), 0
    try:
        while True:
            client.messages.create(**ASK)
            answers += 1
    except anthropic.APIStatusError as error:
        return {"answers": answers, "status": error.status_code, "message": str(error)}


def crowd():
    """Many calls at the same time."""
    with ThreadPoolExecutor(8) as pool:
        return sorted(pool.map(lambda _: call(), range(48)))


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
