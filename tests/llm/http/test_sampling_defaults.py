"""What a request does not say of sampling comes from generation_config.json, as vLLM has it, unless that is turned off.

The oracle is the same request with the fields written out.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps.llm.engine.weights.model import Model
from apps.llm.text.model_files import sampling_defaults_of
from ray_configs.llm import EngineConfig
from tests.llm.engine import tiny_models
from tests.llm.serve.serving import local_server

SAID = {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.01, "repetition_penalty": 1.1, "max_new_tokens": 7}
NAMED = {name: value for name, value in SAID.items() if name != "max_new_tokens"} | {"max_tokens": 7}
HELLO = [{"role": "user", "content": "the quick"}]


def published(folder: Path, **generation: Any) -> Path:
    tiny_models.save(tiny_models.make("llama3"), folder)
    tiny_models.save_tokenizer(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "do_sample": True} | generation))
    return folder


@pytest.mark.slow
def test_requests_sample_as_the_model_says(tmp_path: Path) -> None:
    folder = published(tmp_path / "model", **SAID)
    with local_server(model=str(folder), dtype="float32", pages=64, max_model_len=256) as server:
        assert server.model.sampling_defaults == NAMED

        def told(path: str, **body: Any) -> Any:
            reply = httpx.post(f"{server.url}{path}", json=body, timeout=60)
            assert reply.status_code == 200, reply.text
            return reply.json()

        for seed in range(3):
            chat = {"messages": HELLO, "seed": seed}
            plain, named = told("/v1/chat/completions", **chat), told("/v1/chat/completions", **chat, **NAMED)
            assert plain["choices"] == named["choices"] and plain["usage"]["completion_tokens"] <= 7
            text = {"prompt": "the quick", "seed": seed, "max_tokens": 9}
            plain = told("/v1/completions", **text)["choices"]
            assert plain == told("/v1/completions", **(NAMED | text))["choices"]
            assert plain != told("/v1/completions", **text, temperature=2.0)["choices"] or seed
        response = told("/v1/responses", input="the quick")
        assert (response["temperature"], response["top_p"]) == (0.7, 0.8)
        assert response["usage"]["output_tokens"] <= 7
        message = told("/v1/messages", model="podslice-demo", max_tokens=9, messages=HELLO)
        assert message["usage"]["output_tokens"] <= 9
        long = told("/v1/chat/completions", messages=HELLO, min_tokens=12, ignore_eos=True, seed=1)
        assert long["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, {}),
        ({"temperature": None, "top_k": 20}, {"top_k": 20}),
        ({"temperature": "hot", "top_p": 5, "top_k": 1.5, "min_p": True, "max_new_tokens": 0}, {}),
        ({"temperature": 0, "repetition_penalty": -1}, {"temperature": 0}),
    ],
    ids=str,
)
def test_what_no_request_may_say_is_left_out(said: dict[str, Any], found: dict[str, Any], tmp_path: Path) -> None:
    config = EngineConfig(model=str(published(tmp_path / "model", **said)))
    assert sampling_defaults_of(Model.open(config), config) == found
    neutral = config.model_copy(update={"sampling_defaults": "neutral"})
    assert sampling_defaults_of(Model.open(neutral), neutral) == {}
