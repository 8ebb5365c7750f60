"""Evaluation harnesses' requests: log probabilities of an echoed prompt, as lm-eval reads them, and vLLM's fields."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from apps.llm.chat.conversation import ChatRequest
from apps.llm.text import SamplingParams
from tests.llm.serve.serving import MODEL, LocalServer

TEXT = "Rain in Lyon, and sun in Nice."
PROMPTS = [[7, 8, 9, 40, 41, 42, 50], [60], [11] * 70]


@pytest.fixture(scope="module")
def server(chat_server: LocalServer) -> Iterator[LocalServer]:
    before = chat_server.engine.stats().compiles_after_ready
    yield chat_server
    assert chat_server.engine.stats().compiles_after_ready == before


def ask(server: LocalServer, path: str, **body: Any) -> Any:
    reply = httpx.post(f"{server.url}{path}", json={"model": MODEL} | body, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def asked_as_lm_eval_does(server: LocalServer, prompts: list[list[int]], **more: Any) -> list[dict[str, Any]]:
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    return ask(server, "/v1/completions", **body | more)["choices"]


def test_loglikelihoods_as_lm_eval_reads_them(server: LocalServer) -> None:
    choices = asked_as_lm_eval_does(server, PROMPTS)
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    for choice, prompt in zip(choices, PROMPTS, strict=True):
        told = choice["logprobs"]
        assert {len(told[name]) for name in told} == {len(prompt) + 1}  # and the generated one
        assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
        assert told["text_offset"] == sorted(told["text_offset"])
        assert choice["text"].startswith(server.engine.tokenizer.decode(prompt))
    (engines,) = server.engine.score(PROMPTS[0][:3], [PROMPTS[0][3:]])
    assert choices[0]["logprobs"]["token_logprobs"][3:-1] == pytest.approx(engines, abs=1e-5)


def test_greedy_continuations_are_known_by_the_likeliest_tokens(server: LocalServer) -> None:
    prompt = PROMPTS[0]
    (generated,) = [
        [token for part in server.engine.submit(prompt, params) for token in part.token_ids]
        for params in [SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)]
    ]
    other = [*generated[:2], generated[2] + 1, *generated[3:]]
    found = []
    for choice in asked_as_lm_eval_does(server, [prompt + generated, prompt + other]):
        part = slice(len(prompt), -1)
        pairs = zip(choice["logprobs"]["token_logprobs"][part], choice["logprobs"]["top_logprobs"][part], strict=True)
        found.append([own == max(top.values()) for own, top in pairs])
    assert found[0] == [True] * 5
    assert found[1][:3] == [True, True, False]


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_but_the_prompt(server: LocalServer, stream: bool) -> None:
    body = {"model": MODEL, "prompt": TEXT, "echo": True, "max_tokens": 0, "logprobs": 1, "stream": stream}
    reply = httpx.post(f"{server.url}/v1/completions", json=body)
    if stream:
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        choices = [event["choices"][0] for event in events]
        assert reply.text.endswith("data: [DONE]\n\n")
    else:
        choices = reply.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == TEXT
    assert choices[-1]["finish_reason"] == "length"
    told = choices[0]["logprobs"]
    offsets = [*told["text_offset"], len(TEXT)]
    shown = [TEXT[start:stop] for start, stop in pairwise(offsets)]
    assert [text for text in shown if text] == [
        token for token, text in zip(told["tokens"], shown, strict=True) if text
    ]


def test_a_stream_begins_with_the_prompts_log_probabilities(server: LocalServer) -> None:
    body = {"model": MODEL, "prompt": TEXT, "echo": True, "max_tokens": 3, "logprobs": 1, "temperature": 0}
    whole = httpx.post(f"{server.url}/v1/completions", json=body).json()["choices"][0]
    reply = httpx.post(f"{server.url}/v1/completions", json=body | {"stream": True, "ignore_eos": False})
    choices = [json.loads(line[6:])["choices"][0] for line in reply.text.splitlines() if line.startswith("data: {")]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert [value for choice in choices for value in choice["logprobs"][name]] == values


def test_vllms_prompt_logprobs(server: LocalServer) -> None:
    (choice,) = ask(server, "/v1/completions", prompt=PROMPTS[0], prompt_logprobs=1, max_tokens=1)["choices"]
    (echoed,) = asked_as_lm_eval_does(server, [PROMPTS[0]])
    first, *rest = choice["prompt_logprobs"]
    assert first is None and choice["logprobs"] is None
    for entry, token, logprob in zip(rest, PROMPTS[0][1:], echoed["logprobs"]["token_logprobs"][1:-1], strict=True):
        assert entry[str(token)]["logprob"] == logprob
        assert {"logprob", "rank", "decoded_token"} == entry[str(token)].keys()
        assert min(told["rank"] for told in entry.values()) == 1
        assert (entry[str(token)]["rank"] == 1) == (len(entry) == 1)


def test_tokens_there_and_back(server: LocalServer) -> None:
    told = ask(server, "/tokenize", prompt=TEXT, return_token_strs=True)
    assert told["tokens"] == server.engine.tokenizer.encode(TEXT)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) and told["max_model_len"] == 512
    bare = ask(server, "/tokenize", prompt=TEXT, add_special_tokens=False)
    assert bare["tokens"] == server.engine.tokenizer.encode_suffix(TEXT) and bare["token_strs"] is None
    assert ask(server, "/detokenize", tokens=bare["tokens"]) == {"prompt": TEXT}
    messages = [{"role": "user", "content": TEXT}]
    chat = ask(server, "/tokenize", messages=messages)
    assert chat["tokens"] == server.engine.chat(ChatRequest(messages))[0]
    whole = ask(server, "/v1/chat/completions", messages=messages, max_tokens=1)
    assert whole["usage"]["prompt_tokens"] == chat["count"]


def test_rerank_is_the_cosine_of_the_embeddings(server: LocalServer) -> None:
    documents = ["Sun in Nice.", "x = 3.14 * 2", "Rain in Lyon?", "Rain in Lyon?"]
    told = ask(server, "/v1/rerank", query="Rain in Lyon?", documents=documents)
    query, *vectors = server.engine.embed(["Rain in Lyon?", *documents])
    found = {result["index"]: result["relevance_score"] for result in told["results"]}
    assert [found[i] for i in range(4)] == pytest.approx([float(v @ query) for v in vectors], abs=1e-5)
    assert {result["index"] for result in told["results"][:2]} == {2, 3}
    assert found[2] == pytest.approx(1, abs=1e-5)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert all(result["document"] == {"text": documents[result["index"]]} for result in told["results"])
    texts = [{"text": document} for document in documents]
    two = ask(server, "/v1/rerank", query="Rain", documents=texts, top_n=2, return_documents=False)["results"]
    assert len(two) == 2 and set(two[0]) == {"index", "relevance_score"}


def test_scores_of_pairs_are_cosines_too(server: LocalServer) -> None:
    query, *vectors = server.engine.embed(["Rain", "Sun", "Rain"], "last")
    told = ask(server, "/v1/score", text_1="Rain", text_2=["Sun", "Rain"], pooling="last")
    assert [(entry["index"], entry["object"]) for entry in told["data"]] == [(0, "score"), (1, "score")]
    assert [entry["score"] for entry in told["data"]] == pytest.approx([float(v @ query) for v in vectors], abs=1e-5)
    (pair,) = ask(server, "/v1/score", text_1=["Rain"], text_2="Rain")["data"]
    assert pair["score"] == pytest.approx(1, abs=1e-5)
    one_by_one = ask(server, "/v1/score", text_1=["Rain", "Sun"], text_2=["Sun", "Sun"], pooling="last")["data"]
    assert [entry["score"] for entry in one_by_one] == pytest.approx([told["data"][0]["score"], 1], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False}, None),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**40]}, "tokens"),
        ("/v1/rerank", {"documents": ["x"]}, "query"),
        ("/v1/rerank", {"query": "x", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": ["x", 3]}, "documents"),
        ("/v1/rerank", {"query": "x", "documents": ["x", "y " * 3000]}, "documents[1]"),
        ("/v1/rerank", {"query": "x " * 3000, "documents": ["x"]}, "query"),
        ("/v1/rerank", {"query": "x", "documents": ["x"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "x", "documents": ["x"], "pooling": "max"}, "pooling"),
        ("/v1/rerank", {"query": "x", "documents": ["x"], "instruction": "y"}, "instruction"),
        ("/v1/score", {"text_1": "x"}, "text_2"),
        ("/v1/score", {"text_1": [], "text_2": "x"}, "text_1"),
        ("/v1/score", {"text_1": ["x", "x"], "text_2": ["x"] * 3}, "text_1"),
        ("/v1/score", {"text_1": "x", "text_2": ["x", 3]}, "text_2"),
        ("/v1/score", {"text_1": "x", "text_2": ["x", "y " * 3000]}, "text_2[1]"),
    ],
)
def test_a_bad_body_names_the_field(server: LocalServer, path: str, body: dict[str, Any], param: str | None) -> None:
    reply = httpx.post(f"{server.url}{path}", json={"model": MODEL} | body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param or "add_generation_prompt"), error
    assert error["message"] and error["code"]
