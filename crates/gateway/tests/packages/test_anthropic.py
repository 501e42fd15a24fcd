"""Anthropic's own package, unmodified, behind the gateway."""

from concurrent.futures import ThreadPoolExecutor

import anthropic
import pytest

from conftest import VALUE

HOST = "api.anthropic.com"
ASK = {"model": "claude-haiku-4-5", "max_tokens": 200, "messages": [{"role": "user", "content": "Say hello"}]}
COST = 100 + 50 * 5  # of each answer, in millionths of a dollar


def client(gate):
    return anthropic.Anthropic(api_key=gate.placeholder)


def test_a_message(gate):
    gate = gate(HOST, {"usd": 1})
    answer = client(gate).messages.create(**ASK)
    # The host showed the key it was sent; here it is the placeholder again.
    assert answer.content[0].text == f"Hello there {gate.placeholder}"
    assert answer.usage.output_tokens == 50
    [(path, headers, _)] = gate.kept
    assert path == "/v1/messages" and headers["authorization"] == f"Bearer {VALUE}"
    [call] = gate.calls(1)
    assert call["cost_micro_usd"] == COST and call["prompt"] == "Say hello" and call["decision"] == "allowed"
    assert VALUE not in gate.events() and '"secret_used"' in gate.events()


def test_a_stream(gate):
    gate = gate(HOST, {"usd": 1})
    with client(gate).messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream) == "Hello there"
        assert stream.get_final_message().usage.output_tokens == 50
    assert gate.calls(1)[0]["cost_micro_usd"] == COST


def test_an_error_of_the_api_is_passed_on_and_costs_nothing(gate):
    gate = gate(HOST, {"usd": 1})
    with pytest.raises(anthropic.BadRequestError, match="no such thing"):
        client(gate).messages.create(**ASK, metadata={"user_id": "fails"})
    assert gate.calls(1)[0]["cost_micro_usd"] == 0


def test_a_call_that_does_not_fit_raises_once(gate):
    gate = gate(HOST, {"usd": "0.0005"})
    for stream in (False, True):
        with pytest.raises(anthropic.APIStatusError, match=r"budget of \$0.0005 .* this call needs up to") as raised:
            client(gate).messages.create(**ASK, stream=stream)
        assert raised.value.status_code == 402
    assert gate.kept == []
    assert [call["decision"] for call in gate.calls(2)] == ["refused", "refused"]  # no retries


def test_a_model_without_a_price_raises_once(gate):
    gate = gate(HOST, {"usd": 1})
    with pytest.raises(anthropic.BadRequestError, match="'claude-of-tomorrow' has no price"):
        client(gate).messages.create(**{**ASK, "model": "claude-of-tomorrow"})
    assert gate.kept == [] and len(gate.calls(1)) == 1


def test_an_agent_that_loops_forever_is_stopped(gate):
    gate = gate(HOST, {"usd": "0.02", "at_cap": "kill"})
    mine, answers = client(gate), 0
    with pytest.raises(anthropic.APIStatusError, match="budget"):
        while answers < 1000:
            mine.messages.create(**ASK)
            answers += 1
    assert 0 < answers * COST <= 20_000 and len(gate.kept) == answers
    assert gate.events().count('"cap_reached"') == 1


def test_calls_at_the_same_time_do_not_overshoot(gate):
    gate = gate(HOST, {"usd": "0.01"})
    mine = client(gate)

    def call(_):
        try:
            mine.messages.create(**ASK)
            return True
        except anthropic.APIStatusError as error:
            assert error.status_code == 402
            return False

    with ThreadPoolExecutor(8) as pool:
        admitted = sum(pool.map(call, range(64)))
    assert 0 < admitted < 64 and len(gate.kept) == admitted
    assert sum(call["cost_micro_usd"] or 0 for call in gate.calls(64)) == admitted * COST <= 10_000
