"""Clients that people use, unchanged and from the registry, against the server: `make test-clients`.

Each has a small program in `programs/`, run by the Python of an environment where the clients are installed.
"""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CITIES, NOISE = ("Lyon", "Nice"), 3  # characters at least of a random model's answer

Told = Callable[[str], dict[str, Any]]


def is_forecast(called: Any) -> bool:
    """Whether a call follows the tool's schema, which nothing but a grammar makes a random model do."""
    return called["city"] in CITIES and 1 <= called["days"] <= 9


def test_litellm(told: Told) -> None:
    said = told("with_litellm.py")
    for provider in ("openai", "hosted_vllm", "anthropic"):
        steps = said[provider]
        for step in steps.values():
            assert step["whole"] == step["streamed"]
            assert step["usage"][0] == step["usage"][1]
        answer, call, end = (step["whole"] for step in steps.values())
        assert answer["reason"] == end["reason"] == "length" and not answer["calls"] and not end["calls"]
        assert len(answer["text"]) > NOISE and len(end["text"]) > NOISE
        ((name, arguments),) = call["calls"]
        assert (call["reason"], name) == ("tool_calls", "get_weather") and is_forecast(arguments)
        assert steps["end"]["usage"][0][0] > steps["call"]["usage"][0][0] + 20  # the call and its result are read
    assert said["openai"] == said["hosted_vllm"] == said["anthropic"]
    assert is_forecast(said["json"])
    assert (said["completion tokens"], said["responses"]) == (5, 20)
    assert said["embeddings"] == pytest.approx([1, 1], abs=1e-5)
    assert [index for index, _ in said["ranked"]] == [1, 0] and said["ranked"][0][1] == pytest.approx(1, abs=1e-5)
    assert "temperature must be between" in said["refusal"]


def test_langchain(told: Told) -> None:
    said = told("with_langchain.py")
    for api in ("chat completions", "responses", "messages"):
        one = said[api]
        for turns in (one["agent"], one["streamed"]):
            assert [kind for kind, *_ in turns] == ["human", "ai", "tool", "ai"]
            ((name, arguments),) = turns[1][1]
            assert name == "get_weather" and is_forecast(arguments)
            assert turns[2][2] == f"no rain in {arguments['city']} for {arguments['days']} days"
            assert not turns[3][1] and len(turns[3][2]) > NOISE
        assert one["agent"] == one["streamed"]
        assert len(one["pieces"]) > 5 and "".join(one["pieces"]) == one["streamed"][3][2]
        assert (
            one["usage"]["output_tokens"] == 120 and one["usage"]["total_tokens"] == one["usage"]["input_tokens"] + 120
        )
        assert len(one["text"]) > NOISE and is_forecast(one["json"])
    assert said["chat completions"]["text"] == said["responses"]["text"] == said["messages"]["text"]
    assert said["embeddings"] == pytest.approx([1, 1], abs=1e-5)


def test_llama_index(told: Told) -> None:
    said = told("with_llama_index.py")
    ((name, arguments, result),) = said["agent"]["calls"]
    assert name == "get_weather" and arguments["city"] in CITIES and isinstance(arguments["rain"], bool)
    assert result == f"no rain in {arguments['city']}"
    assert said["agent"]["streamed"] == said["agent"]["answer"] and len(said["agent"]["answer"]) > NOISE
    assert "".join(said["streamed"]) == said["text"] and len(said["streamed"]) > 5
    assert said["completion"] == 5
    assert said["json"]["city"] in CITIES and isinstance(said["json"]["rain"], bool)
