"""Linear attention by the gated delta rule: transformers' own functions, models and answers are the oracle.

Sequences keep a state by slot, whoever had it before, whatever else is in a step, and however their tokens are cut.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule as recurrent

from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.layers import DeltaNet, Norm
from apps.llm.engine.model.mixers import delta_kernel, delta_rule
from apps.llm.engine.model.mixers.delta_net import DeltaState
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.weights.model import Model, with_states
from apps.llm.text import Engine, EngineConfig, SamplingParams
from tests.llm.engine import tiny_models
from tests.llm.engine.asking import ids, read, settled
from tests.llm.engine.model.test_models import Stepper, worst_error
from tests.llm.engine.schedule.test_resume import continued_everywhere

SPEC = DeltaNet(2, 6, key_dim=8, value_dim=12, taps=4, norm=Norm(1e-6))
CHANNELS = 2 * SPEC.key_dim + SPEC.values_per_key * SPEC.value_dim
SLOTS = 9
"""Of which most are in a step: memories are taken where they are."""


def step_of(lengths: list[tuple[int, int, int]], tokens: int) -> Any:
    """The parts of a step: of each sequence its tokens, its length with them, and its slot."""
    shape = StepShape(tokens, 8, 40)
    host = shape.host()
    for count, length, slot in lengths:
        host.add(list(range(count)), length, [], decoding=False, row=slot)
    return delta_rule.parts_of(shape.unpack(jnp.asarray(host.packed)))


def theirs(x: np.ndarray, ba: np.ndarray, taps: np.ndarray, decays: Any, state: DeltaState) -> tuple[Any, Any, Any]:
    """One sequence, by transformers' recurrence, token by token, and torch's convolution, in float64."""
    inputs, memory = (torch.tensor(np.asarray(part), dtype=torch.float64) for part in state)
    joined = torch.cat([inputs.flatten(0, 1), torch.tensor(x, dtype=torch.float64).flatten(1).T], dim=1)
    weight = torch.tensor(taps, dtype=torch.float64).flatten(0, 1)[:, None]
    convolved = torch.nn.functional.silu(torch.nn.functional.conv1d(joined[None], weight, groups=len(weight))[0]).T
    q, k, v = convolved.reshape(len(x), SPEC.num_key_heads, -1).split(
        [SPEC.key_dim, SPEC.key_dim, SPEC.values_per_key * SPEC.value_dim], dim=-1
    )
    b, a = torch.tensor(ba, dtype=torch.float64).unbind(2)
    rate, bias = (torch.tensor(part, dtype=torch.float64) for part in decays)
    g = -rate.exp() * torch.nn.functional.softplus(a + bias)
    parts = (q, k, v.reshape(len(x), -1, SPEC.value_dim), g.flatten(1), b.sigmoid().flatten(1))
    y, last = recurrent(
        *(part[None].float() for part in parts),
        initial_state=memory[None].float(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    kept = joined[:, -(SPEC.taps - 1) :].reshape(SPEC.num_key_heads, CHANNELS, -1)
    return y[0].numpy(), kept.numpy(), last[0].numpy()


@pytest.mark.parametrize("kernel", [None, partial(delta_kernel.one_token, interpret=True)], ids=["XLA", "kernel"])
@pytest.mark.parametrize("slots", [SLOTS, 50])
def test_parts_of_any_length_as_transformers(slots: int, kernel: Any) -> None:
    """New and old, of one token and of several chunks, in one step; the slots of others stay as they are."""
    lengths = [(1, 7, 3), (70, 70, 0), (1, 1, 5), (2, 90, 1), (64, 64, 2), (129, 130, 7), (1, 300, 4)]
    random = np.random.default_rng(0)
    total = sum(count for count, _, _ in lengths)
    x = random.standard_normal((320, SPEC.num_key_heads, CHANNELS)).astype(np.float32)
    ba = random.standard_normal((320, SPEC.num_key_heads, 2, SPEC.values_per_key)).astype(np.float32)
    taps = random.standard_normal((SPEC.num_key_heads, CHANNELS, SPEC.taps)).astype(np.float32)
    decays = tuple(random.standard_normal((2, SPEC.num_key_heads, SPEC.values_per_key)).astype(np.float32))
    state = DeltaState(
        random.standard_normal((slots, SPEC.num_key_heads, CHANNELS, SPEC.taps - 1)).astype(np.float32),
        random.standard_normal((slots, SPEC.num_value_heads, SPEC.key_dim, SPEC.value_dim)).astype(np.float32),
    )
    assert total < 320, "some of the step is padding"
    mixed = jax.jit(partial(delta_rule.mixed, SPEC, kernel=kernel))
    y, made = mixed(x, ba, taps, decays, state, step_of(lengths, 320))
    start = 0
    for count, length, slot in lengths:
        before = jax.tree.map(lambda part, slot=slot: part[slot] * (count < length), state)  # noqa: B023
        own = slice(start, start + count)
        wanted, inputs, memory = theirs(x[own], ba[own], taps, decays, before)
        np.testing.assert_allclose(np.asarray(y)[own], wanted, atol=2e-4)
        np.testing.assert_allclose(np.asarray(made.inputs)[slot], inputs, atol=1e-5)
        np.testing.assert_allclose(np.asarray(made.memory)[slot], memory, atol=2e-4)
        start += count
    np.testing.assert_array_equal(np.asarray(made.memory)[6], state.memory[6])
    np.testing.assert_array_equal(np.asarray(made.inputs)[6], state.inputs[6])


@pytest.mark.parametrize("strength", [20.0, -3.0])
def test_the_same_token_again_and_again(strength: float) -> None:
    """Keys that are all alike, hardly any decay: the system of a chunk is as bad as it can be."""
    x = np.tile(np.random.default_rng(1).standard_normal((1, 2, CHANNELS)).astype(np.float32), (256, 1, 1))
    ba = np.full((256, 2, 2, SPEC.values_per_key), strength, np.float32)
    ba[:, :, 1] = -30.0  # the decay's
    taps = np.ones((2, CHANNELS, SPEC.taps), np.float32) / 4
    decays = (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))
    empty = DeltaState(
        np.zeros((SLOTS, 2, CHANNELS, 3), np.float32), np.zeros((SLOTS, 6, SPEC.key_dim, SPEC.value_dim), np.float32)
    )
    y, _ = jax.jit(delta_rule.mixed, static_argnums=0)(SPEC, x, ba, taps, decays, empty, step_of([(256, 256, 0)], 256))
    wanted, _, _ = theirs(x, ba, taps, decays, jax.tree.map(lambda part: part[0], empty))
    np.testing.assert_allclose(np.asarray(y), wanted, atol=2e-4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_5")
    tiny_models.save(tiny_models.make("qwen3_5"), folder)
    tiny_models.save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def engine(checkpoint: Path, compile_cache: str) -> Iterator[Engine]:
    """Of few pages, so that sequences are preempted."""
    settings = tiny_models.SMALL | {"pages": 20, "max_step_tokens": 96}
    engine = Engine.load(EngineConfig(model=str(checkpoint), compile_cache=compile_cache, **settings))
    yield engine
    engine.shutdown()


@pytest.mark.slow
def test_many_at_once_are_answered_as_by_transformers(engine: Engine, checkpoint: Path) -> None:
    """More than there are slots and pages for: each gets a slot that another one had, and some are preempted."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    prompts = [[2 + (place * step) % 300 for place in range(length)] for step, length in enumerate(range(3, 99, 8), 3)]
    greedy = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    open_ = [engine.submit(prompt, greedy) for prompt in prompts]
    for prompt, generation in zip(prompts, open_, strict=True):
        made = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=20, min_new_tokens=20, eos_token_id=None
        )
        assert ids(read(generation)[0]) == made[0, len(prompt) :].tolist()
    stats = engine.stats()
    assert stats.preemptions and not stats.prefix_hit_tokens and not stats.compiles_after_ready
    settled(engine)


@pytest.mark.parametrize("kind", ["greedy", "sampled", "penalties", "schema", "logprobs"])
def test_answers_are_continued_from_any_token(engine: Engine, kind: str) -> None:
    continued_everywhere(engine, kind, tolerance=1e-4)


def test_scores_and_several_answers(engine: Engine, checkpoint: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    prompt, suffix = "the quick brown fox", " jumps over"
    first, rest = engine.tokenizer.encode(prompt), engine.tokenizer.encode_suffix(suffix)
    given = tiny_models.logits(model, [*first, *rest]).log_softmax(-1)
    wanted = sum(float(given[len(first) - 1 + place, token]) for place, token in enumerate(rest))
    (found,) = engine.score(prompt, [suffix])
    assert np.isclose(float(np.sum(found)), wanted, atol=1e-3)
    answers = read(engine.submit(prompt, SamplingParams(seed=3, n=3, max_tokens=12, ignore_eos=True)))
    assert len({tuple(ids(answer)) for answer in answers}) == 3
    alone = read(engine.submit(prompt, SamplingParams(seed=3, n=1, max_tokens=12, ignore_eos=True)))
    assert ids(alone[0]) == ids(answers[0])


def test_beside_a_tower_and_a_head_for_drafts(tmp_path: Path, compile_cache: str) -> None:
    """As the hub has it: the decoder below `model.language_model.`, `model.visual.`, and tensors of `mtp.`."""
    text = tiny_models.make("qwen3_5")
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": 64}
    vision |= {"num_position_embeddings": 16, "patch_size": 4}
    config = transformers.Qwen3_5Config(text_config=text.config.to_dict(), vision_config=vision)
    config._attn_implementation = "eager"
    model = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    tiny_models.save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert any("language_model" in name for name in tensors) and any("visual" in name for name in tensors)
    save_file(tensors | {"mtp.fc.weight": torch.zeros(64, 128)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert worst_error(Stepper(tmp_path, compile_cache), text) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "qwen3_next", "muse_glimmer"])
def test_two_thousand_tokens_of_prompt_and_decode(family: str, tmp_path: Path, compile_cache: str) -> None:
    """In steps of one token and of many, in any order. The oracle is one pass of transformers' model."""
    window = {"sliding_window": 300} if family == "muse_glimmer" else {}
    model = tiny_models.make(family, max_position_embeddings=4096, **window)
    tiny_models.save(model, tmp_path)
    stepper = Stepper(tmp_path, compile_cache, max_model_len=2048, pages=200)
    random, tokens, at = np.random.default_rng(0), [2 + (i * i * 7 + i * 3) % 300 for i in range(2000)], 0
    found = []
    while at < len(tokens):
        count = int(random.choice([1, 1, 1, 3, 64, 65, 96]))
        found.append(stepper(tokens[at : at + count]))
        at += count
    wanted = tiny_models.logits(model, tokens).numpy()
    assert np.abs(np.concatenate(found) - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_experts_of_a_mixture_in_one_tensor(tmp_path: Path, compile_cache: str) -> None:
    """Under transformers' own names in memory, and with the layer's others as they are."""
    model = tiny_models.make("qwen3_5_moe")
    tiny_models.save(model, tmp_path)
    tensors = {
        name: part for name, part in load_file(tmp_path / "model.safetensors").items() if ".experts." not in name
    }
    packed = {name: part.detach().clone() for name, part in model.named_parameters() if ".experts." in name}
    assert packed["model.layers.0.mlp.experts.gate_up_proj"].shape == (8, 64, 64)
    save_file(tensors | packed, tmp_path / "model.safetensors", {"format": "pt"})
    assert worst_error(Stepper(tmp_path, compile_cache), model) <= 1e-4


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"layer_types": ["linear_attention"]}, "layer_types has 1 entries for 4 layers"),
        ({"layer_types": ["mamba"] * 4}, "layer_types mamba is not supported"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads 3 is not a multiple of linear_num_key_heads 2"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        from_hf_config(tiny_models.config_of("qwen3_5").to_dict() | changes)


def test_options_that_do_not_go_with_its_states_are_refused_by_name(checkpoint: Path) -> None:
    def settled(**options: Any) -> EngineConfig:
        config = EngineConfig(model=str(checkpoint), **tiny_models.SMALL | options)
        return Model.open(config).settle(config)

    with pytest.raises(ValueError, match="prefix_cache_host_gib: pages alone are of no use to a model with linear"):
        settled(prefix_cache_host_gib=0.1)
    with pytest.raises(ValueError, match="prefix_states is for the prefix cache, which prefix_cache=false turns off"):
        settled(prefix_states=3, prefix_cache=False)
    own = settled()
    assert own.prefix_states == own.max_batch_size and settled(prefix_cache=False).prefix_states is None
    with pytest.raises(ValueError, match="prefix_states is for models with linear attention, which this one is not"):
        with_states(EngineConfig(prefix_states=3), recurrent=False)
    arch = from_hf_config(tiny_models.config_of("qwen3_5").to_dict())
    with pytest.raises(
        ValueError, match=r"cannot split 2 key heads of linear attention evenly; it can be one of \[1, 2\]"
    ):
        arch.split(4)
