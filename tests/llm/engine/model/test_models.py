"""Every family's logits against transformers' own float32 model: prefill in two chunks, then 16 decode steps."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from apps.arrays import distributed
from apps.arrays.layout import Layout
from apps.arrays.program_cache import use_compile_cache
from apps.jobs.preparation import PrepareArguments, prepare
from apps.llm.engine.execute.local import LocalExecutor
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.families.tiny import HEAD_DIM, tiny
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.prepared import open_checkpoint
from apps.llm.engine.weights.prepared_shards import stored_params
from ray_configs.llm import EngineConfig
from tests.llm.engine import tiny_models

CHUNKS, DECODES = (90, 60), 16  # tokens: more than one block of keys, more than the sliding windows
PREFILL = 96  # tokens of a step: enough that four devices split them (see products.splits_by_token)
IDS = torch.randint(2, tiny_models.VOCAB, (sum(CHUNKS) + DECODES,), generator=torch.Generator().manual_seed(1)).tolist()


class Stepper:
    """Runs one sequence through the decoder as the executor's step does, and shows every token's logits."""

    def __init__(self, folder: Path, compile_cache: str, arch: Architecture | None = None, **settings: Any):
        use_compile_cache(compile_cache)
        sizes = {"model": str(folder), "max_model_len": 192, "max_step_tokens": 512}
        config = EngineConfig(**(tiny_models.SMALL | sizes | settings))
        checkpoint = Checkpoint(config.model)
        arch = arch or checkpoint.architecture().serving(config.max_model_len)
        (mesh,) = distributed.meshes(Layout(1, config.tensor_parallel or 1))
        assert mesh.size == (config.tensor_parallel or 1)  # fewer devices pass unseen
        self.executor = LocalExecutor(mesh, config, Model(arch, checkpoint, config.random_weights))
        self.executor.make_cache(list(range(2, tiny_models.VOCAB)))
        self._run = jax.jit(self._step, static_argnames="shape", donate_argnums=1)
        self.kv_len = self.adapter = 0

    def _step(self, weights, caches, kv_scales, packed, shape: StepShape):
        batch, decoder = shape.unpack(packed), self.executor.decoder
        hidden, caches = decoder.hidden(weights, batch, batch.tokens, caches, kv_scales)
        return decoder.logits(weights, hidden), caches

    def __call__(self, tokens: list[int]) -> np.ndarray:
        """`[tokens, vocab]` for the next tokens, which follow those of the calls before."""
        size = 8 if len(tokens) == 1 else PREFILL
        shape = StepShape(size, 8, self.executor.max_pages)
        self.kv_len += len(tokens)
        step = shape.host()
        pages = range(3, 3 + -(-self.kv_len // self.executor.config.page_size))
        step.add(tokens, self.kv_len, pages, decoding=False, adapter=self.adapter)
        out, self.executor.caches = self._run(
            self.executor.params, self.executor.caches, self.executor.kv_scales, step.packed, shape
        )
        return np.asarray(out)[: len(tokens)]


def worst_error(stepper: Stepper, reference: transformers.PreTrainedModel | np.ndarray, ids: list[int] = IDS) -> float:
    """Largest difference of a logit from the reference's for `ids`, in parts of the largest logit, over all steps."""
    prompt = len(ids) - DECODES
    first = prompt * CHUNKS[0] // sum(CHUNKS)
    cuts = np.cumsum([0, first, prompt - first, *[1] * DECODES])
    ours = np.concatenate([stepper(ids[start:stop]) for start, stop in pairwise(cuts)])
    if not isinstance(reference, np.ndarray):
        reference = tiny_models.logits(reference, ids).numpy()
    return float(np.abs(ours - reference).max() / np.abs(reference).max())


QUICK = {"llama3", "qwen3", "mixtral", "gpt_oss", "gemma3", "gemma4", "muse_glimmer", "qwen3_5"}
"""Families whose differences are those of the others, or most of them."""


@pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=[] if family in QUICK else pytest.mark.slow) for family in tiny_models.FAMILIES],
)
def test_logits(family: str, tmp_path: Path, compile_cache: str) -> None:
    model = tiny_models.make(family)
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache), model) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "int8"])
def test_experts_whose_matrices_are_filled_up(kind: str, tmp_path: Path, compile_cache: str) -> None:
    model = tiny_models.make("qwen3_moe", moe_intermediate_size=160)
    tiny_models.save(model, tmp_path)
    stepper = Stepper(tmp_path, compile_cache, quantize_weights=kind)
    assert jax.tree.leaves(stepper.executor.params["layers"][0]["experts_out"])[0].shape[1] == 256
    assert worst_error(stepper, model) < (1e-4 if kind == "none" else 0.1)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_gemma3_beside_a_vision_tower(
    prefix: str, tmp_path: Path, compile_cache: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = tiny_models.make("gemma3")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    vision = {**sizes, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config=text.config, vision_config=vision, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    tiny_models.save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("language_model.model.", prefix): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    with caplog.at_level("INFO", logger="podslice"):
        assert worst_error(Stepper(tmp_path, compile_cache), text) <= 1e-4
    assert "vision tower" in caplog.text


def test_mistral3_beside_a_vision_tower(tmp_path: Path, compile_cache: str) -> None:
    text = tiny_models.make("mistral", tie_word_embeddings=False)
    vision = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 1, "image_size": 28, "patch_size": 14}
    config = transformers.Mistral3Config(text_config=text.config, vision_config=vision, tie_word_embeddings=False)
    model = transformers.Mistral3ForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache), text) <= 1e-4


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_without_a_head(
    tied: bool, tmp_path: Path, compile_cache: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As the hub has Qwen3-Embedding: its tensors' names do not begin with `model.`. Some configs leave tying out."""
    model = tiny_models.make("qwen3", tie_word_embeddings=True)
    model.config.tie_word_embeddings = tied
    tiny_models.save(model.model, tmp_path)
    with caplog.at_level("INFO", logger="podslice"):
        assert worst_error(Stepper(tmp_path, compile_cache), model) <= 1e-4
    assert "tower" not in caplog.text


def test_a_stored_head_beside_a_config_that_ties_it(
    tmp_path: Path, compile_cache: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The oracle is what transformers loads: another head is used, the same one is not kept twice."""
    model = tiny_models.make("qwen2")
    assert model.config.tie_word_embeddings
    tiny_models.save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    embeddings = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embeddings.clone()}, tmp_path / "model.safetensors")
    assert Checkpoint(str(tmp_path)).architecture().tied_embeddings
    assert not caplog.text
    head = embeddings.flip(0).contiguous()
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    assert torch.equal(theirs.lm_head.weight, head)
    with caplog.at_level("WARNING", logger="podslice"):
        assert worst_error(Stepper(tmp_path, compile_cache), theirs) <= 1e-4
    assert "ties the head" in caplog.text
    prepare(PrepareArguments(str(tmp_path), str(tmp_path / "prepared"), dtype="float32"))
    prepared = open_checkpoint(str(tmp_path / "prepared"))
    assert not prepared.architecture().tied_embeddings
    assert set(prepared.tensors) == set(stored_params(prepared.architecture(), 1))


def test_a_tied_matrix_that_is_stored_as_the_head(tmp_path: Path, compile_cache: str) -> None:
    """Whoever drops tensors that share memory keeps either name; transformers takes the one that is there."""
    model = tiny_models.make("qwen2")
    tiny_models.save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    assert worst_error(Stepper(tmp_path, compile_cache), model) <= 1e-4


def test_yarn_rope(tmp_path: Path, compile_cache: str) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
    model = tiny_models.make("qwen3", rope_parameters=rope)
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache), model) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xla", "pallas"])
def test_attention_sinks(kind: str, tmp_path: Path, compile_cache: str, interpreted: None) -> None:
    model = tiny_models.make("gpt_oss")
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache, attention=kind), model) <= 1e-4


@pytest.mark.slow
def test_sinks_far_above_and_below_all_scores(tmp_path: Path, compile_cache: str, interpreted: None) -> None:
    model = tiny_models.make("gpt_oss")
    for sign, layer in zip((1, -1, 1), model.model.layers):
        layer.self_attn.sinks.data.fill_(sign * 1000.0)
    tiny_models.save(model, tmp_path)
    for kind in ("cpu", "xla", "pallas"):
        assert worst_error(Stepper(tmp_path, compile_cache, attention=kind), model) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("longest", [64, 192])
def test_longrope_of_a_part_of_the_channels(longest: int, tmp_path: Path, compile_cache: str) -> None:
    """As Phi-4-mini has it. Sequences within the original positions, and beyond them."""
    factors = {f"{kind}_factor": [start + pair / 4 for pair in range(6)] for kind, start in (("short", 1), ("long", 3))}
    rope = {"rope_type": "longrope", "partial_rotary_factor": 0.75, "original_max_position_embeddings": 64} | factors
    model = tiny_models.make("phi3", rope_parameters=rope | {"rope_theta": 1e4}, original_max_position_embeddings=64)
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache, max_model_len=longest), model, IDS[:longest]) <= 1e-4


def test_longrope_as_the_hub_has_it() -> None:
    """Files of before transformers 5, such as Phi-3-mini-128k's: the first of them call it su."""
    lists = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    old = {"model_type": "phi3", "hidden_act": "silu", "original_max_position_embeddings": 64} | tiny_models.SIZES
    found = [from_hf_config(old | {"rope_scaling": {"type": kind} | lists}) for kind in ("su", "yarn", "longrope")]
    assert found[0] == found[1] == found[2]
    rope, short, long, toy = (
        arch.layers[0].mixer.rope
        for arch in (found[0], found[0].serving(64), found[0].serving(65), tiny(found[0], shards=1, layers=1))
    )
    assert rope is not None and rope.kind == "longrope" and rope.scale == pytest.approx((1 + 3 / 6) ** 0.5)
    assert (short.inverse_frequencies(16)[0], long.inverse_frequencies(16)[0]) == (1.0, 0.5)
    assert len(toy.inverse_frequencies(HEAD_DIM)) == HEAD_DIM // 2


@pytest.mark.parametrize(("trained", "longest"), [(512, 192), (64, 128)])
def test_dynamic_rope(trained: int, longest: int, tmp_path: Path, compile_cache: str) -> None:
    """Within the trained positions, and of a sequence of the longest served length."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = tiny_models.make("llama3", rope_parameters=rope, max_position_embeddings=trained)
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache, max_model_len=longest), model, IDS[:longest]) <= 1e-4


def test_several_files(tmp_path: Path, compile_cache: str) -> None:
    model = tiny_models.make("llama3")
    tiny_models.save(model, tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert worst_error(Stepper(tmp_path, compile_cache), model) <= 1e-4


def test_bfloat16_checkpoint(tmp_path: Path, compile_cache: str) -> None:
    tiny_models.save(tiny_models.make("llama3").to(torch.bfloat16), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert worst_error(Stepper(tmp_path, compile_cache), model) <= 1e-4
    rough = worst_error(Stepper(tmp_path, compile_cache, dtype="bfloat16"), model)
    assert 1e-4 < rough <= 0.06


def test_biases_of_llama(tmp_path: Path, compile_cache: str) -> None:
    model = tiny_models.make("llama3", attention_bias=True, mlp_bias=True)
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache), model) <= 1e-4


def test_windows_of_qwen(tmp_path: Path, compile_cache: str) -> None:
    model = tiny_models.make("qwen2", use_sliding_window=True, sliding_window=40, max_window_layers=1)
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache), model) <= 1e-4


def test_linear_rope(tmp_path: Path, compile_cache: str) -> None:
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    model = tiny_models.make("llama3", rope_parameters=rope)
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache), model) <= 1e-4
