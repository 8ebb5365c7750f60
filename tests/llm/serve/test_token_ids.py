"""`return_token_ids`, in the places where vLLM has them (`serving.py` below its `entrypoints/openai`):
of a completion's prompt and answer in its choice, of a chat's prompt beside its choices.

Oracle of the ids: the checkpoint's own tokenizer and template, as transformers reads them.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import transformers

from tests.llm.serve.serving import LocalServer

ASKED = {"max_tokens": 12, "seed": 3, "return_token_ids": True, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
TEXTS = ["one €", "two words 🦊"]


@pytest.fixture(scope="module")
def tokenizer(chat_server: LocalServer) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(chat_server.engine.tokenizer._hf.name_or_path)


@pytest.fixture
def http(chat_server: LocalServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=chat_server.url, timeout=120) as client:
        yield client


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = http.post(path, json=body | {"stream": True}).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line and not line.endswith("[DONE]")]


def test_of_completions(http: httpx.Client, tokenizer: Any) -> None:
    body = ASKED | {"prompt": TEXTS, "n": 2}
    whole = http.post("/v1/completions", json=body).json()
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [ids for ids in prompts for _ in range(2)]
    for choice in whole["choices"]:
        assert len(choice["token_ids"]) == 12
        assert tokenizer.decode(choice["token_ids"], skip_special_tokens=True).startswith(choice["text"].rstrip("�"))
    streamed = events(http, "/v1/completions", body)
    for choice in whole["choices"]:
        news = [event["choices"][0] for event in streamed if event["choices"][0]["index"] == choice["index"]]
        assert [token for each in news for token in each["token_ids"]] == choice["token_ids"]
        assert [each["prompt_token_ids"] for each in news if "prompt_token_ids" in each] == [choice["prompt_token_ids"]]
        assert "prompt_token_ids" in news[0]


def test_they_are_a_prompt_again(http: httpx.Client) -> None:
    """An answer that is cut in two goes on where it was."""
    body = ASKED | {"prompt": "one", "temperature": 0}
    whole = http.post("/v1/completions", json=body).json()["choices"][0]
    first = http.post("/v1/completions", json=body | {"max_tokens": 5}).json()["choices"][0]
    second = body | {"prompt": first["prompt_token_ids"] + first["token_ids"], "max_tokens": 7}
    assert (
        first["token_ids"] + http.post("/v1/completions", json=second).json()["choices"][0]["token_ids"]
        == whole["token_ids"]
    )


@pytest.mark.parametrize("thinking", [True, False])
def test_of_chats(http: httpx.Client, tokenizer: Any, thinking: bool) -> None:
    body = ASKED | CHAT | {"n": 2, "chat_template_kwargs": {"enable_thinking": thinking}}
    whole = http.post("/v1/chat/completions", json=body).json()
    prompt = tokenizer.apply_chat_template(
        CHAT["messages"], add_generation_prompt=True, enable_thinking=thinking, return_dict=False
    )
    assert whole["prompt_token_ids"] == prompt
    assert all(len(choice["token_ids"]) == 12 and "prompt_token_ids" not in choice for choice in whole["choices"])
    streamed = events(http, "/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
    for choice in whole["choices"]:
        of_it = [event for event in streamed if event["choices"] and event["choices"][0]["index"] == choice["index"]]
        news = [event["choices"][0] for event in of_it]
        assert [token for each in news for token in each.get("token_ids", ())] == choice["token_ids"]
        assert of_it[0]["prompt_token_ids"] == prompt and not any("prompt_token_ids" in each for each in of_it[1:])


def test_of_an_echoed_prompt_alone(http: httpx.Client, tokenizer: Any) -> None:
    body = ASKED | {"prompt": "one", "max_tokens": 0, "echo": True}
    (choice,) = http.post("/v1/completions", json=body).json()["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (tokenizer("one")["input_ids"], [])
    streamed = [event["choices"][0] for event in events(http, "/v1/completions", body)]
    assert streamed[0]["prompt_token_ids"] == choice["prompt_token_ids"]


def test_nothing_is_told_unasked(http: httpx.Client) -> None:
    body = CHAT | {"max_tokens": 4}
    for answer in [http.post("/v1/chat/completions", json=body).json(), *events(http, "/v1/chat/completions", body)]:
        assert "token_ids" not in json.dumps(answer)
