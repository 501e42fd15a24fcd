"""OpenAI's own package, unmodified, behind the gateway."""

import openai
import pytest

from conftest import VALUE

HOST = "api.openai.com"
MESSAGES = [{"role": "user", "content": "Say hello"}]
CHAT = {"model": "gpt-4o-mini", "max_completion_tokens": 200, "messages": MESSAGES}
RESPONSE = {"model": "gpt-5-mini", "max_output_tokens": 200, "input": "Say hello"}
COST = {"gpt-4o-mini": 15 + 30, "gpt-5-mini": 25 + 100}  # of each answer, in millionths of a dollar


def client(gate):
    return openai.OpenAI(api_key=gate.placeholder)


def paid(gate, model):
    [call] = gate.calls(1)
    assert (call["provider"], call["model"], call["cost_micro_usd"]) == ("openai", model, COST[model])
    [(_, headers, _)] = gate.kept
    assert headers["authorization"] == f"Bearer {VALUE}"
    assert VALUE not in gate.events()


def test_a_chat(gate):
    gate = gate(HOST, {"usd": 1})
    answer = client(gate).chat.completions.create(**CHAT)
    assert answer.choices[0].message.content == "Hello there"
    paid(gate, "gpt-4o-mini")


def test_a_chat_that_streams_is_paid_though_nobody_asked_for_usage(gate):
    gate = gate(HOST, {"usd": 1})
    chunks = list(client(gate).chat.completions.create(**CHAT, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"
    assert gate.kept[0][2]["stream_options"] == {"include_usage": True}
    paid(gate, "gpt-4o-mini")


def test_usage_that_was_asked_for_arrives(gate):
    gate = gate(HOST, {"usd": 1})
    asked = {"include_usage": True}
    chunks = list(client(gate).chat.completions.create(**CHAT, stream=True, stream_options=asked))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 50


def test_a_response(gate):
    gate = gate(HOST, {"usd": 1})
    assert client(gate).responses.create(**RESPONSE).output_text == "Hello there"
    paid(gate, "gpt-5-mini")


def test_a_response_that_streams(gate):
    gate = gate(HOST, {"usd": 1})
    events = list(client(gate).responses.create(**RESPONSE, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello there"
    assert events[-1].type == "response.completed"
    paid(gate, "gpt-5-mini")


def test_embeddings(gate):
    gate = gate(HOST, {"usd": 1})
    answer = client(gate).embeddings.create(model="text-embedding-3-small", input="hello", encoding_format="float")
    assert answer.data[0].embedding == [0.5, 0.25]
    assert gate.calls(1)[0]["cost_micro_usd"] == 2


def test_a_call_that_does_not_fit_raises_once(gate):
    gate = gate(HOST, {"tokens": 500})
    for ask in (
        lambda: client(gate).chat.completions.create(**CHAT),
        lambda: client(gate).chat.completions.create(**CHAT, stream=True),
        lambda: client(gate).responses.create(**RESPONSE),
        lambda: client(gate).responses.create(**RESPONSE, stream=True),
    ):
        with pytest.raises(openai.APIStatusError, match="budget of 500 tokens") as raised:
            ask()
        assert (raised.value.status_code, raised.value.code) == (402, "sloplet_budget")
    assert gate.kept == []
    assert [call["decision"] for call in gate.calls(4)] == ["refused"] * 4  # no retries


def test_too_many_in_a_minute_raise_the_packages_own_error(gate):
    gate = gate(HOST, {"requests_per_minute": 1})
    mine = client(gate).with_options(max_retries=0)
    mine.chat.completions.create(**CHAT)
    with pytest.raises(openai.RateLimitError, match="1 LLM calls per minute"):
        mine.chat.completions.create(**CHAT)
