"""Toy doubles: split over devices as the whole model is, and loaded in its place, reachable or not."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.families.tiny import generic, tiny
from apps.llm.engine.model.layers import DeltaNet
from apps.llm.engine.model.param import Param
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.weights.model import Model
from apps.llm.text import Engine, EngineConfig
from apps.llm.text.model_files import tokenizer_of
from apps.plan.llm import known
from tests.llm.engine import tiny_models
from tests.llm.engine.asking import ask, text

GEMMA2 = {"hidden_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256}
WHOLE = {
    "lm_cloud": (lm_cloud.find("lm_cloud.LmCloudSpmd175B32Test"), (1, 4, 16, 32, 48)),
    "llama": (generic(None), (1, 2, 8, 16, 64)),
    "gemma2": (
        from_hf_config(
            {"model_type": "gemma2", "vocab_size": 256000, "intermediate_size": 14336, "num_hidden_layers": 42}
            | {"max_position_embeddings": 8192, "hidden_activation": "gelu_pytorch_tanh"}
            | GEMMA2
        ),
        (1, 2, 4, 16),
    ),
    "qwen3_moe": (
        from_hf_config(
            {"model_type": "qwen3_moe", "vocab_size": 151936, "intermediate_size": 6144, "num_hidden_layers": 48}
            | {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
            | {"max_position_embeddings": 40960, "hidden_act": "silu", "num_experts": 128, "num_experts_per_tok": 8}
            | {"moe_intermediate_size": 768, "norm_topk_prob": True}
        ),
        (1, 2, 4, 16),
    ),
    "gemma4": (from_hf_config(known.MODELS["google/gemma-4-31B"]), (1, 2, 8, 16, 32)),
    "qwen3_5": (from_hf_config(known.MODELS["Qwen/Qwen3.5-27B"]), (1, 2, 4, 8)),
    "muse_glimmer": (from_hf_config(known.MODELS["meta-models/Muse-Glimmer-30B"]), (1, 2, 4, 8, 16)),
    "gemma4_e": (from_hf_config(known.MODELS["google/gemma-4-E4B"]), (1, 8)),
}


@pytest.mark.parametrize(("arch", "shards"), [(arch, n) for arch, many in WHOLE.values() for n in many])
def test_the_split_is_the_whole_ones(arch: Architecture, shards: int) -> None:
    toy = tiny(arch, shards)
    assert toy.num_params < 5e7 and toy.num_layers == 2
    for own, layer in zip(toy.layers, arch.few(2), strict=True):
        whole = arch.layers[layer]
        if isinstance(own.mixer, DeltaNet):
            assert own.mixer.num_key_heads == shards and own.mixer.values_per_key == whole.mixer.values_per_key
            assert (own.mixer.taps, own.mixer.norm, own.norm) == (whole.mixer.taps, whole.mixer.norm, whole.norm)
            continue
        toys, wholes = (
            split.heads(each.mixer.num_heads, each.mixer.num_kv_heads)
            for split, each in ((toy.split(shards), own), (arch.split(shards), whole))
        )
        assert (toys.repeat, toys.group) == (wholes.repeat, wholes.group)
        scales = [each.mixer.scale * each.mixer.head_dim**0.5 for each in (own, whole)]
        assert scales[0] == pytest.approx(scales[1])
        mixer = {name: getattr(whole.mixer, name) for name in ("num_heads", "num_kv_heads", "head_dim", "scale")}
        own = replace(own, mixer=replace(own.mixer, **mixer), feed_forward=whole.feed_forward, inputs=whole.inputs)
        assert own == whole, "every switch is the whole one's"
    assert len({each.head_dim for each in toy.attention}) == len({each.head_dim for each in arch.attention})
    sizes = {name: getattr(arch, name) for name in ("hidden_size", "intermediate_size", "layers")}
    assert replace(toy, **sizes) == arch
    assert tiny(arch, shards, layers=1000).num_layers == arch.num_layers


def test_the_same_parameters_in_the_same_places() -> None:
    def places(arch: Architecture) -> dict[str, tuple]:
        layer: dict[str, Param] = declare(arch, arch.split(32))["layers"][1]
        return {name: (param.axes, param.matrix, param.constant) for name, param in layer.items()}

    arch = WHOLE["lm_cloud"][0]
    assert places(tiny(arch, 32)) == places(arch)


def test_what_cannot_be_split_is_refused_with_the_whole_ones_sizes() -> None:
    with pytest.raises(ValueError, match=r"tensor_parallel 64 cannot split 96 attention heads"):
        tiny(WHOLE["lm_cloud"][0], 64)


@pytest.mark.slow
def test_a_checkpoints_double_speaks_with_its_tokenizer(llama: Path, compile_cache: str) -> None:
    engine = Engine.load(str(llama), **tiny_models.SMALL, tiny=True, compile_cache=compile_cache)
    assert engine.tokenizer.fast.to_str() == Tokenizer.from_file(str(llama / "tokenizer.json")).to_str()
    assert text(ask(engine, "the quick", seed=1)) == text(ask(engine, "the quick", seed=1)) != ""
    engine.shutdown()


@pytest.mark.parametrize("location", ["someone/llama", "/no/such/folder", "memory://no/such/folder"])
def test_what_cannot_be_read_becomes_a_toy_llama(location: str, caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(model=location, tiny=True, max_model_len=300)
    with caplog.at_level(logging.WARNING, "podslice"):
        model = Model.open(config).at_size(config, 8)
    assert "using a tiny Llama with a byte tokenizer" in caplog.text and location in caplog.text
    assert model.arch == tiny(generic(300), 8) and model.random_weights
    tokenizer = tokenizer_of(model)
    ids = tokenizer.encode_suffix(tokenizer.render([{"role": "user", "content": "é"}]))
    assert tokenizer.decode(ids) == "user: é\nassistant:"
    assert all(token < model.arch.vocab_size for token in ids)


def test_an_unknown_family_is_still_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(UnsupportedModel, match="mamba"):
        Model.open(EngineConfig(model=str(tmp_path), tiny=True))


def test_settings_beside_a_config() -> None:
    with pytest.raises(TypeError, match="put max_batch_size, tiny into the config"):
        Engine.load(EngineConfig(), max_batch_size=2, tiny=True)
