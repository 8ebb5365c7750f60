"""Hosts in lockstep give the answers that one process gives; each reads its own shards; all fail when one does."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.llm.api import EngineStats
from apps.llm.engine.prefix import reuse
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.text import Engine, EngineConfig, EngineStopped, SamplingParams
from tests.llm.engine import tiny_models
from tests.llm.engine.adapters import making
from tests.llm.slice.processes import Processes

pytestmark = pytest.mark.timeout(600)

HOSTS, DEVICES = 2, 4
EVERYWHERE = "norm.weight", "mlp.gate.weight", "router.weight", "router.bias", "o_proj.bias"
EVERYWHERE += "norm_1.weight", "norm_2.weight", "layer_scalar", "router.scale", "router.per_expert_scale"
EVERYWHERE += "router.proj.weight", "input_gate.weight", "per_layer_projection.weight", "model_projection.weight"
PACKED = re.compile(r"\.experts\.(gate_up|down)_proj")
"""Tensors of all experts of a layer."""
FEW = 2
"""Devices of a host where their number does not matter: four on two cores mostly wait for each other."""
PROMPTS = ["the quick brown fox", "x", "days of the week jump over the lazy dog and the brown fox " * 2]
MODELS: dict[str, dict[str, Any]] = {
    # Eight shards: of two, one, sixteen key/value heads.
    "llama3": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "gemma": {"num_attention_heads": 8, "num_key_value_heads": 1},
    "gemma2": {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 16, "num_hidden_layers": 2},
    "qwen3_moe": {"num_attention_heads": 8, "num_key_value_heads": 2},  # two experts of each layer on each device
    "gpt_oss": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "gemma4": {},
    "gemma4_moe": {},
    "gemma4_e": {},
    "muse_glimmer": {"num_attention_heads": 8},
    "qwen3_5": {"num_attention_heads": 8, "linear_num_key_heads": 8, "linear_num_value_heads": 16},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = folder = tmp_path_factory.mktemp(family)
            tiny_models.save(tiny_models.make(family, **MODELS[family]), folder)
            tiny_models.save_tokenizer(folder)
        return made[family]

    return make


@pytest.fixture
def config(checkpoint: Callable[[str], Path], slice_cache: str) -> Callable[..., EngineConfig]:
    def make(family: str = "llama3", **settings: Any) -> EngineConfig:
        defaults = tiny_models.SMALL | {"model": str(checkpoint(family)), "compile_cache": slice_cache}
        return EngineConfig(**(defaults | settings))

    return make


def answers(engine: Engine, adapter: str | None = None, **params: Any) -> list[list[Any]]:
    """Of several requests at once: each token's id and its likeliest alternatives with their log probabilities."""
    wanted = SamplingParams(**({"temperature": 0, "max_tokens": 12, "ignore_eos": True, "logprobs": 20} | params))
    generations = [engine.submit(prompt, wanted, adapter=adapter) for prompt in PROMPTS]
    outputs = [[token for output in generation for token in output.logprobs] for generation in generations]
    return [[(token.token_id, {top[0]: top[2] for top in token.top}) for token in tokens] for tokens in outputs]


def scores(engine: Engine, prompts: list[str]) -> list[float]:
    return [score for prompt in prompts for suffix in engine.score(prompt, prompts) for score in suffix]


def assert_same(found: list[list[Any]], expected: list[list[Any]]) -> None:
    assert [[token for token, _ in answer] for answer in found] == [[token for token, _ in a] for a in expected]
    for answer, other in zip(found, expected):
        for (_, top), (_, other_top) in zip(answer, other):
            shared = top.keys() & other_top.keys()
            assert len(shared) >= 18  # of 20: the last may change places
            assert max(abs(top[token] - other_top[token]) for token in shared) < 1e-4


@pytest.mark.parametrize(
    ("family", "devices"),
    [
        pytest.param("llama3", FEW, marks=pytest.mark.slow),
        pytest.param("llama3", DEVICES, marks=pytest.mark.slow),
        pytest.param("gemma", DEVICES, marks=pytest.mark.long),
        pytest.param("gemma2", DEVICES, marks=pytest.mark.slow),
        pytest.param("qwen3_moe", DEVICES, marks=pytest.mark.slow),
        pytest.param("gpt_oss", DEVICES, marks=pytest.mark.slow),
        pytest.param("gemma4", DEVICES, marks=pytest.mark.long),
        pytest.param("gemma4_moe", DEVICES, marks=pytest.mark.slow),
        pytest.param("gemma4_e", DEVICES, marks=pytest.mark.slow),
        pytest.param("muse_glimmer", DEVICES, marks=pytest.mark.slow),
        pytest.param("qwen3_5", DEVICES, marks=pytest.mark.slow),
    ],
)
def test_two_hosts_give_the_answers_of_one_process(
    family: str, devices: int, config: Callable[..., EngineConfig]
) -> None:
    alone = Engine.load(config(family))
    place = Processes(HOSTS, devices)
    together = Engine.load(config(family), place)
    try:
        expected = answers(alone)
        assert_same(answers(together), expected)
        # Every kind of message: penalties (START_SLOT), a bias and a least length (constraints), random draws.
        odd = {"presence_penalty": 1.0, "repetition_penalty": 1.2, "logit_bias": {7: 3.0, 9: -100.0}, "min_tokens": 3}
        assert_same(answers(together, **odd), answers(alone, **odd))
        assert_same(answers(together, temperature=1.0, seed=5), answers(alone, temperature=1.0, seed=5))
        for read in (scores, Engine.embed, partial(Engine.embed, pooling="last")):
            assert np.abs(np.subtract(read(together, PROMPTS), read(alone, PROMPTS))).max() < 1e-4
        stats = together.stats()
        assert stats.compiles_after_ready == 0 and stats.pages_used == 0 and stats.pages_total == 63
        check_bytes(place.bytes_read(), devices, config(family).model)
    finally:
        alone.shutdown()
        together.shutdown()
    assert place.left == [0] * HOSTS, "hosts end with the engine"


@pytest.mark.slow
def test_prefixes_come_back_from_the_memory_of_each_host(config: Callable[..., EngineConfig]) -> None:
    """Each host keeps the parts of its own devices. Oracle: one process without a prefix cache."""
    sizes = {"pages": 14, "page_size": 16, "max_batch_size": 2}
    alone = Engine.load(config(prefix_cache=False, **sizes))
    together = Engine.load(config(prefix_cache_host_gib=0.01, **sizes), Processes(HOSTS, FEW))
    stats = asked_again(alone, together, [[7 + number, *range(20, 20 + 11 * number)] for number in range(1, 8)])
    assert stats.host_hit_tokens > 100


@pytest.mark.slow
def test_states_come_back_on_two_hosts(config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a model with linear attention, whose states are kept on the devices."""
    monkeypatch.setattr(reuse, "WORTH", 16)
    sizes = {"pages": 40, "page_size": 16, "max_batch_size": 2}
    alone = Engine.load(config("qwen3_5", prefix_cache=False, **sizes))
    together = Engine.load(config("qwen3_5", prefix_states=12, **sizes), Processes(HOSTS, DEVICES))
    stats = asked_again(alone, together, [[7 + number, *range(20, 20 + 11 * number)] for number in range(2, 7)])
    assert stats.prefix_hit_tokens > 100


def asked_again(alone: Engine, together: Engine, prompts: list[list[int]]) -> EngineStats:
    """Ask the second engine three times for what the first one answers once; its stats. Both are shut down."""

    def tokens(engine: Engine) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        generations = [engine.submit(prompt, params) for prompt in prompts]
        return [[token for output in generation for token in output.token_ids] for generation in generations]

    try:
        expected = tokens(alone)
        for _ in range(3):
            assert tokens(together) == expected
        stats = together.stats()
        assert stats.compiles_after_ready == 0
        return stats
    finally:
        alone.shutdown()
        together.shutdown()


@pytest.mark.slow
def test_two_hosts_share_the_width_of_experts(config: Callable[..., EngineConfig]) -> None:
    """Two groups of devices, one on each host; the expert's biases count once."""
    alone = Engine.load(config("gpt_oss"))
    together = Engine.load(config("gpt_oss", expert_parallel=2), Processes(HOSTS, FEW))
    try:
        assert_same(answers(together), answers(alone))
    finally:
        alone.shutdown()
        together.shutdown()


@pytest.mark.slow
def test_two_hosts_load_and_unload_an_adapter(config: Callable[..., EngineConfig], tmp_path: Path) -> None:
    base = tiny_models.make("llama3", **MODELS["llama3"])
    for seed, name in enumerate(("one", "other")):
        making.save_adapter(base, tmp_path / name, seed, r=4, target_modules=list(making.ATTENTION + making.MLP))
    settings = {"max_adapters": 2, "adapters": {"one": str(tmp_path / "one")}}
    engines = [Engine.load(config(**settings)), Engine.load(config(**settings), Processes(HOSTS, FEW))]
    try:
        alone, together = engines
        for engine in engines:
            engine.load_adapter("other", str(tmp_path / "other"))
        found = {name: answers(together, adapter=name) for name in (None, "one", "other")}
        for name, given in found.items():
            assert_same(given, answers(alone, adapter=name))
        assert found["one"] != found[None] != found["other"] != found["one"]
        together.unload_adapter("one")
        together.load_adapter("again", str(tmp_path / "other"))
        assert_same(answers(together, adapter="again"), found["other"])
        assert together.stats().compiles_after_ready == 0
    finally:
        for engine in engines:
            engine.shutdown()


@pytest.mark.slow
def test_lm_cloud_without_weights_is_the_same_model_on_one_host_and_on_two(slice_cache: str) -> None:
    """Random weights follow from the seed alone, whichever host draws them."""
    settings = tiny_models.SMALL | {"compile_cache": slice_cache, "tensor_parallel": HOSTS * DEVICES}
    config = EngineConfig(model="lm_cloud.LmCloudSpmd175B32Test", tiny=True, random_weights=True, **settings)
    found = []
    for place in (Processes(1, HOSTS * DEVICES), Processes(HOSTS, DEVICES)):
        engine = Engine.load(config, place)
        found.append(answers(engine, max_tokens=8))
        engine.shutdown()
    assert_same(*found)


@pytest.mark.long
def test_copies_side_by_side_give_the_same_answers(config: Callable[..., EngineConfig]) -> None:
    """Two copies on each host: whoever answers, the answer is that of one process."""
    alone, data = Engine.load(config()), 4
    place = Processes(HOSTS, DEVICES)
    together = Engine.load(config(data_parallel=data, max_batch_size=8), place)
    try:
        assert [rank.stepper.config.max_batch_size for rank in together.tokens.loops] == [2] * data
        expected = answers(alone)
        for _ in range(2):
            assert_same(answers(together), expected)
        busy = [rank.stats().steps > 0 for rank in together.tokens.loops]
        assert sum(busy) >= min(data, len(PROMPTS)), "each at a rank that has nothing to do"
        stats = together.stats()
        assert stats.compiles_after_ready == 0 and stats.pages_used == 0 and stats.pages_total == data * 63
    finally:
        alone.shutdown()
        together.shutdown()
    assert place.left == [0] * HOSTS, "hosts end with the engine"


@pytest.mark.slow
def test_a_copy_in_trouble_fails_all_of_them(config: Callable[..., EngineConfig]) -> None:
    place = Processes(HOSTS, FEW, deadline_s=60, trouble={"kind": "die", "rank": 1, "step": 12})
    engine = Engine.load(config(data_parallel=2), place)
    generations = [engine.submit(prompt, SamplingParams(max_tokens=80, ignore_eos=True)) for prompt in PROMPTS[:2]]
    ends = [[output.error for output in generation][-1] for generation in generations]
    assert any("host 1 has died" in (error or "") for error in ends)
    with pytest.raises(EngineStopped):
        engine.check()
    with pytest.raises(EngineStopped):
        engine.submit("x")
    engine.shutdown()
    assert len(place.left) == HOSTS and place.left[0] == 0, "the other copy's host ends too"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_175b_model_at_its_96_layers_on_eight_hosts(slice_cache: str) -> None:
    """Tiny only in width. Eight processes compile 96 layers each: minutes of both cores, so marked `long`.

    Each host has one device here: more would only wait for each other, on a machine of two cores.
    """
    settings = {"max_batch_size": 4, "max_step_tokens": 16, "max_model_len": 64, "page_size": 16, "pages": 32}
    settings |= {"tiny": True, "tiny_layers": 96, "random_weights": True, "quantize_weights": "int8"}
    place = Processes(8, 1, deadline_s=300)  # which share the cores
    config = EngineConfig(model="lm_cloud.LmCloudSpmd175B32Test", compile_cache=slice_cache, **settings)
    engine = Engine.load(config, place)
    try:
        (loop,) = engine.tokens.loops
        assert loop.executor.arch.num_layers == 96
        wanted = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        first = engine.generate(["How many days are in a week?"], wanted)
        assert engine.generate(["How many days are in a week?"], wanted) == first
        stats = engine.stats()
        assert (stats.generated_tokens, stats.compiles_after_ready, stats.pages_used) == (16, 0, 0)
    finally:
        engine.shutdown()
    assert place.left == [0] * 8


def check_bytes(by_host: list[dict[str, int]], devices: int, folder: str) -> None:
    """No host reads more of a matrix than its devices hold, however the matrix is split."""
    for name, entry in Checkpoint(folder).tensors.items():
        size, read = entry.stop - entry.start, [host.get(name, 0) for host in by_host]
        if "vision" in name:
            assert read == [0] * HOSTS, "towers are left out"
        elif name.endswith(EVERYWHERE):
            assert read == [size] * HOSTS, name
        elif PACKED.search(name):
            # gpt-oss's once for the gates' rows and once for the others.
            times = 2 if "mlp.experts.gate_up" in name else 1
            assert read == [times * size // HOSTS] * HOSTS, name
        elif ".experts." in name:
            assert sorted(read) == [0, size], "an expert is whole on one host"
        elif any(part in name for part in ("k_proj", "v_proj")):
            # Where there are fewer heads than devices, each device reads the one head that it holds a copy of.
            copies = max(1, HOSTS * devices // (entry.shape[0] // head_dim(folder, name)))
            assert sum(read) == size * copies and len(set(read)) == 1, name
        else:
            assert read == [size // HOSTS] * HOSTS, name


def head_dim(folder: str, name: str) -> int:
    sizes = Checkpoint(folder).json("config.json")
    sizes = sizes.get("text_config", sizes)
    (layer,) = re.findall(r"layers\.(\d+)\.", name)
    sizes |= sizes.get("per_layer_config", {}).get(layer, {})
    return sizes.get("head_dim") or sizes["hidden_size"] // sizes["num_attention_heads"]


@pytest.mark.slow
def test_hosts_agree_on_the_number_of_pages(config: Callable[..., EngineConfig]) -> None:
    place = Processes(HOSTS, DEVICES, free_memory=[2**30, 2**20])
    engine = Engine.load(config(pages=None), place)
    try:
        # Half of 85% of the poorer host's megabyte; a page of 16 tokens has 8 KiB on each host.
        per_host = 2 * 2 * 16 * 8 * 8 * 4 // HOSTS
        assert engine.stats().pages_total == int(2**20 * 0.85 / 2 // per_host) - 1
        assert engine.generate(["the quick"], SamplingParams(max_tokens=4, ignore_eos=True))
    finally:
        engine.shutdown()


@pytest.mark.slow
def test_too_little_memory_on_one_host_is_said(config: Callable[..., EngineConfig]) -> None:
    place = Processes(HOSTS, FEW, free_memory=[2**30, 2**14])
    with pytest.raises(RuntimeError, match=r"host \d failed: MemoryError: the KV cache has room for"):
        Engine.load(config(pages=None), place)
    assert place.left == [0] * HOSTS


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("raise", "host 1 failed: RuntimeError: this host's chip is gone"),
        ("die", "host 1 has died"),
        ("hang", "a step has not ended after 3 s"),
    ],
)
@pytest.mark.slow
def test_one_host_in_trouble_fails_all(kind: str, said: str, config: Callable[..., EngineConfig]) -> None:
    # Three steps warm up; the trouble comes in the middle of the answers.
    trouble = {"kind": kind, "rank": 1, "step": 12}
    # A step that only waits for a busy machine must not pass for one that hangs.
    place = Processes(HOSTS, FEW, deadline_s=3 if kind == "hang" else 60, trouble=trouble)
    engine = Engine.load(config(), place)
    with pytest.raises(EngineStopped, match=said):
        engine.generate(PROMPTS, SamplingParams(max_tokens=80, ignore_eos=True))
    with pytest.raises(EngineStopped, match=said):
        engine.submit("x")
    with pytest.raises(EngineStopped, match=said):
        engine.check()
    engine.shutdown()
    assert len(place.left) == HOSTS and place.left[0] == 0, "the others end too"


@pytest.mark.slow
def test_a_whole_slice_takes_part(config: Callable[..., EngineConfig]) -> None:
    place = Processes(HOSTS, DEVICES)
    with pytest.raises(ValueError, match=r"is 1 x 4 = 4, but the slice has 8 devices on 2 hosts, and each"):
        Engine.load(config(tensor_parallel=4, data_parallel=1), place)
    place.slice.close()
    assert place.left == [0] * HOSTS


@pytest.mark.slow
def test_the_next_step_is_sent_before_the_last_one_is_read(config: Callable[..., EngineConfig]) -> None:
    place = Processes(HOSTS, FEW)
    engine = Engine.load(config(), place)
    try:
        events: list[str] = []
        (hosts,) = place.slice.dp_ranks
        tell, tokens = hosts.tell, hosts.tokens
        hosts.tell = lambda data: (events.append("launch"), tell(data))
        hosts.tokens = lambda: (events.append("read"), tokens())[1]
        engine.generate(["x"], SamplingParams(max_tokens=30, ignore_eos=True))
        ahead = [events[:i].count("launch") - events[:i].count("read") for i in range(len(events))]
        assert max(ahead) == 2 and ahead.count(2) > 20
    finally:
        engine.shutdown()
