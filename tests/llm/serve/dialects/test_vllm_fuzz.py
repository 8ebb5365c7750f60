"""Random bodies to vLLM's endpoints, over a real engine: an answer or a clear error, never a server failure.

python -m tests.llm.serve.dialects.test_vllm_fuzz 10000 [SEED]    # requests to each route; prints the seed
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.llm.serve.serving import MODEL, LocalServer, local_server
from tests.llm.text import chat_models

SEED = 20261123  # fixed, so that failures come only from changes; the command above draws new bodies
CHAT = [{"role": "user", "content": "Rain in Lyon?"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
RIGHT: dict[str, dict[str, list[Any]]] = {  # route -> field -> valid values
    "/tokenize": {
        "model": [MODEL],
        "prompt": ["", "Rain in Lyon?", "<s></s><tool_call>", "é\u4fa8\U0001f327\ufffd\0", "x " * 2000],
        "messages": [CHAT, [*CHAT, {"role": "assistant", "content": "No."}, *CHAT]],
        "tools": [[TOOL], []],
        "chat_template_kwargs": [{}, {"enable_thinking": False}, {"add_generation_prompt": True}, {"bos_token": "x"}],
        "add_special_tokens": [True, False],
        "return_token_strs": [True, False],
    },
    "/detokenize": {"model": [MODEL], "tokens": [[], [0, 1], [302, 44, 7, 7], [*range(300)], [200] * 3000]},
    "/v1/rerank": {
        "model": [MODEL],
        "query": ["Rain", "é\u4fa8\0", "x " * 200],
        "documents": [["Sun"], ["Rain", "Sun", "Rain"], [{"text": "Sun"}, {"text": "Rain"}], ["x " * 200] * 3],
        "top_n": [0, 1, 99],
        "return_documents": [True, False],
        "pooling": ["mean", "last"],
    },
    "/v1/score": {
        "model": [MODEL],
        "text_1": ["Rain", "é\u4fa8\0", ["Rain"], ["Rain", "Sun"]],
        "text_2": ["Sun", ["Rain", "Sun"], ["x " * 200] * 2],
        "pooling": ["mean", "last"],
    },
}
NEEDED = {"/tokenize": ("prompt", "messages"), "/detokenize": ("tokens",), "/v1/rerank": ("query", "documents")}
NEEDED["/v1/score"] = ("text_1", "text_2")
WRONG: list[Any] = [
    *(None, True, 0, -1, 2**31, 2**63, 10**30, 1.5, 1e308, "", "x", "\ud800", "\0", "9" * 400, [], {}, [[]], [None]),
    *({"a": 1}, [{"role": "user"}], [{"text": None}], [{"text": "\ud800"}], [302, -5], [1.5], ["\ud800"], [319, 320]),
    *({"role": "user", "content": "x"}, [{"role": "tool", "content": "x", "tool_call_id": "a"}], {"messages": 3}),
    *({"tools": []}, {"chat_template": "{{ 1 / 0 }}"}, {"messages": []}, [TOOL, TOOL], [TOOL | {"function": {}}]),
]


class Fuzz:
    def __init__(self, seed: int):
        self.chance = random.Random(seed)
        self.statuses: Counter[tuple[str, int]] = Counter()

    def body(self, route: str) -> bytes:
        """A valid or nearly valid JSON object."""
        chance, right = self.chance, RIGHT[route]
        needed = NEEDED[route] if route != "/tokenize" else (chance.choice(NEEDED[route]),)
        names = [name for name in right if name in needed or (name not in NEEDED[route] and chance.random() < 0.3)]
        fields = {name: chance.choice(right[name]) for name in names}
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            name = chance.choice([*right, "x", "add_generation_prompt"])
            fields[name] = self.altered(fields[name]) if name in fields and chance.random() < 0.5 else self.value()
            if chance.random() < 0.1:
                del fields[name]
        data = json.dumps(fields).encode()
        if chance.random() < 0.05:  # not JSON, or another route's body
            at = chance.randrange(len(data))
            data = data[:at] + chance.choice((b"", b"\xff", b"NaN", b"]")) + data[at + 1 :]
        return data

    def value(self) -> Any:
        kept = [value for values in RIGHT.values() for one in values.values() for value in one]
        return self.chance.choice([*WRONG, *WRONG, *kept])

    def altered(self, value: Any) -> Any:
        """The value with a random part replaced."""
        if isinstance(value, list) and value:
            at = self.chance.randrange(len(value))
            return [*value[:at], self.altered(value[at]), *value[at + 1 :]]
        if isinstance(value, dict) and value:
            name = self.chance.choice([*value])
            return value | {name: self.altered(value[name])}
        return self.value()

    def run(self, url: str, count: int) -> None:
        with httpx.Client(base_url=url, timeout=120) as client:
            for route in RIGHT:
                for _ in range(count):
                    body = self.body(route)
                    reply = client.post(route, content=body)
                    self.statuses[route, reply.status_code] += 1
                    assert reply.status_code in (200, 400, 404), (route, body[:2000], reply.status_code, reply.text)
                    if reply.status_code == 200:
                        read(route, json.loads(body), reply)
                    else:
                        error = reply.json()["error"]
                        kind = "not_found_error" if reply.status_code == 404 else "invalid_request_error"
                        assert error["message"] and error["type"] == kind, (body, error)


def read(route: str, body: dict[str, Any], reply: httpx.Response) -> None:
    """Checks that hold for every answer."""
    told = json.loads(reply.content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON: {body}"))
    if route == "/tokenize":
        assert told["count"] == len(told["tokens"])
        assert (told["token_strs"] is not None) == (body.get("return_token_strs") is True)
    elif route == "/detokenize":
        assert bool(told["prompt"]) <= bool(body["tokens"])
    elif route == "/v1/score":
        lengths = [len(body[name]) for name in ("text_1", "text_2") if isinstance(body[name], list)]
        assert len(told["data"]) == max(lengths, default=1)
    else:
        scores = [result["relevance_score"] for result in told["results"]]
        assert scores == sorted(scores, reverse=True) and len(scores) == min(
            body.get("top_n") or len(body["documents"]), len(body["documents"])
        )


def test_random_bodies(chat_server: LocalServer) -> None:
    fuzz = Fuzz(SEED)
    fuzz.run(chat_server.url, 100)
    for route in RIGHT:
        assert fuzz.statuses[route, 200] > 20 and fuzz.statuses[route, 400] > 20


if __name__ == "__main__":
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns()
    print(f"seed {seed}", flush=True)
    fuzz = Fuzz(seed)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = chat_models.save(Path(folder), "qwen3")
        sizes = {"dtype": "float32", "pages": 128, "page_size": 16, "max_model_len": 512}
        with local_server(model=str(checkpoint), **sizes) as server:
            fuzz.run(server.url, int(sys.argv[1]))
    for (route, status), count in sorted(fuzz.statuses.items()):
        print(f"{route:12} {status} {count}")
