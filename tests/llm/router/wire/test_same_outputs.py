"""An engine over the wire gives what it gives in its own process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from apps.arrays.model_folder import CheckpointError
from apps.llm.api import Caller, Grammar, RequestError, Sampling, TokenRequest, UnknownAdapter
from apps.llm.engine.engine import JaxEngine
from apps.llm.router.wire.served import ServedEngine
from apps.llm.schemas.written import schema_grammar
from tests.llm.engine.adapters import making
from tests.llm.router.wire.asking import ask, request, start, until

SCHEMA = {"type": "object", "properties": {"é": {"enum": [1.5, 2**70, None, "x"]}}, "required": ["é"]}
PROMPT = (0, *range(40, 70))
WARM = {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "min_p": 0.01}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1}


def sampled(seed: int = 3, limit: int = 60, sampling: dict[str, Any] | None = None, **fields: Any) -> TokenRequest:
    return request(PROMPT, limit, sampling=Sampling(seed=seed, **(WARM | (sampling or {}))), **fields)


ASKED = {
    "greedy": [request(PROMPT, 60)],
    "sampled": [sampled(sampling=PENALTIES | {"ignore_eos": True})],
    "n": [sampled(seed) for seed in range(3)],
    "logprobs": [sampled(sampling={"logprobs": 5})],
    "bias": [sampled(sampling={"logit_bias": {7: 100.0, 8: 99.5}, "banned": ((7, 8),), "min_tokens": 4})],
    "stop": [sampled(sampling={"stop_token_ids": tuple(range(100, 300))})],
    "only": [sampled(sampling={"allowed_token_ids": (9, 11, 13)})],
    "grammar": [sampled(seed, grammar=schema_grammar(SCHEMA)) for seed in range(2)],
    "lark": [sampled(grammar=Grammar('start: "the " ("fox" | "dog")+', written=("grammar",)))],
    "scores": [
        TokenRequest(id=1, prompt_ids=PROMPT, suffix=(5, 6, 7)),
        TokenRequest(id=2, prompt_ids=PROMPT, suffix=(8, 9)),
    ],
    "embedding": [TokenRequest(id=1, prompt_ids=PROMPT, pooling="mean")],
    "continued": [sampled(answer_ids=(20, 21, 22))],
    "owned": [sampled(caller=Caller("ada", "::1", background=True), priority=3, cache_salts=("\ud800", "b"))],
    "late": [request(PROMPT, 60, deadline_s=0.0)],
}


@pytest.mark.parametrize("name", ASKED)
def test_same_outputs(name: str, engine: JaxEngine, served: ServedEngine, connect: Callable[..., Any]) -> None:
    remote = connect(served.endpoint).engine
    ask(engine, *ASKED[name])  # so that all later ones find the same prefix
    here = ask(engine, *ASKED[name])
    assert ask(remote, *ASKED[name]) == here
    assert all(outputs[-1].finish_reason for outputs in here)
    assert remote.busy is False


def test_capabilities_and_stats(engine: JaxEngine, served: ServedEngine, connect: Callable[..., Any]) -> None:
    remote = connect(served.endpoint).engine
    assert remote.capabilities == engine.capabilities
    ask(remote, request())
    until(lambda: remote.stats() == engine.stats())
    remote.check(60.0)


def test_cache_news_follow_the_cache(engine: JaxEngine, served: ServedEngine, connect: Callable[..., Any]) -> None:
    ask(engine, request(range(100, 140)))
    remote = connect(served.endpoint).engine
    names = set[bytes]()
    numbers: list[int] = []

    def known() -> bool:
        nonlocal names, numbers
        (news,) = remote.cache_news(numbers)
        numbers = [news.number]
        names = set(news.stored) if news.whole else names - set(news.forgotten) | set(news.stored)
        return names == set(engine.cache_news()[0].stored)

    until(known)
    before = set(names)
    for first in range(20):  # more pages than the cache has: others are forgotten
        ask(remote, request(range(first, first + 100), 104))
        if not first:
            until(known)
    until(known)
    assert before - names and names - before


@pytest.mark.parametrize(
    "wrong",
    [
        {"adapter": b"\xff\x00none"},
        {"grammar": Grammar("start: %%%", written=("grammar",))},
        {"grammar": Grammar("{}", schemas=(("response_format", {"type": "nonsense"}),))},
        {"grammar": schema_grammar({"type": "integer"}), "answer_ids": (200, 201)},
    ],
    ids=["adapter", "lark", "schema", "answer"],
)
def test_same_errors(
    wrong: dict[str, Any], engine: JaxEngine, served: ServedEngine, connect: Callable[..., Any]
) -> None:
    remote = connect(served.endpoint).engine
    found = []
    for each in (engine, remote):
        with pytest.raises(RequestError) as raised:
            start(each, sampled(**wrong))
        error = raised.value
        found.append((type(error), str(error), error.field, error.status, error.code, error.retry_after_s))
    assert found[0] == found[1]
    assert not engine.busy and not remote.busy


def test_too_deep_a_schema_is_refused_here(served: ServedEngine, connect: Callable[..., Any]) -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="nested") as raised:
        start(connect(served.endpoint).engine, sampled(grammar=Grammar("{}", schemas=(("tools", deep),))))
    assert raised.value.field == "tools"


def test_adapters(
    engine: JaxEngine, served: ServedEngine, connect: Callable[..., Any], llama: Path, tmp_path: Path
) -> None:
    base = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    making.save_adapter(base, tmp_path, 1, r=4, lora_alpha=8, target_modules=list(making.ATTENTION))
    remote, other = connect(served.endpoint).engine, connect(served.endpoint).engine
    assert remote.adapters() == []
    loaded = remote.load_adapter("a", str(tmp_path))
    assert loaded in remote.adapters() and list(remote.adapters()) == engine.adapters()
    until(lambda: other.adapters() == remote.adapters())
    adapted = request(PROMPT, 60, adapter=loaded.key)
    ask(engine, adapted)
    here = ask(engine, adapted)
    assert ask(remote, adapted) == here != ask(remote, request(PROMPT, 60))
    with pytest.raises(RequestError, match="a"):
        remote.load_adapter("a", str(tmp_path))
    with pytest.raises(CheckpointError):
        remote.load_adapter("b", str(tmp_path / "none"))
    remote.unload_adapter("a")
    assert remote.adapters() == engine.adapters() == []
    with pytest.raises(UnknownAdapter, match="there is no adapter a"):
        remote.unload_adapter("a")


def test_two_routers_see_their_own(engine: JaxEngine, served: ServedEngine, connect: Callable[..., Any]) -> None:
    """With the same ids."""
    first, second = (connect(served.endpoint).engine for _ in range(2))
    asked = [[request((0, 10 + 20 * i + j, 9), 60) for j in range(4)] for i in range(2)]
    wanted = [[ask(engine, each)[0] for each in group] for group in asked]
    same = [[msgspec.structs.replace(each, id=j) for j, each in enumerate(group)] for group in asked]
    readers = [[start(engine_, each) for each in group] for engine_, group in zip((first, second), same)]
    for group, mine in zip(wanted, readers):
        for outputs, reader in zip(group, mine):
            assert reader.ended.wait(240)
            assert reader.tokens() == [[token for output in outputs for token in output.token_ids]]


@pytest.mark.slow
@pytest.mark.usefixtures("slow")
def test_abort(engine: JaxEngine, served: ServedEngine, connect: Callable[..., Any]) -> None:
    remote = connect(served.endpoint).engine
    asked = [request(PROMPT, 128), request(PROMPT, 128)]
    reader = start(remote, *asked)
    assert reader.began.wait(240) and remote.busy
    remote.abort([asked[0].id, 12345678])
    assert reader.ended.wait(240)
    assert reader.reasons() == ["abort", "length"] and not remote.busy
    remote.abort([each.id for each in asked])
    until(lambda: not engine.busy)
