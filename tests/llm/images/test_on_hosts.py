"""Images on a slice of two hosts, each with a part of the tower and of the decoder: transformers' tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from apps.llm.text import Engine, EngineConfig
from tests.llm.engine import tiny_models
from tests.llm.engine.asking import ids, read
from tests.llm.images import seeing_models
from tests.llm.images.conftest import OF_FAMILY, SEES
from tests.llm.images.test_tokens_of_images import ASKED
from tests.llm.slice.processes import Processes


@pytest.mark.slow
@pytest.mark.parametrize(
    "family, tensor, rows",
    [
        ("qwen3_5", "model.visual.blocks.0.attn.qkv.weight", 3 * 48),
        ("qwen3_vl_moe", "model.visual.blocks.0.attn.qkv.weight", 3 * 48),
        ("gemma3", "model.vision_tower.encoder.layers.0.self_attn.q_proj.weight", 48),
        ("gemma4", "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight", 48),
        ("gemma4_e", "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight", 48),
    ],
)
def test_on_two_hosts(seeing: Callable[[str], Path], compile_cache: str, family: str, tensor: str, rows: int) -> None:
    settings = tiny_models.SMALL | SEES | OF_FAMILY.get(family, {})
    settings |= {"tensor_parallel": 2, "compile_cache": compile_cache}
    model, slice_ = seeing_models.make(family), Processes(2, 1)
    engine = Engine.load(EngineConfig(model=str(seeing(family)), **settings), slice_)
    asked = {name: replace(each, family=family) for name, each in ASKED.items()}
    try:
        generations = {name: each.submit(engine) for name, each in asked.items()}
        for name, generation in generations.items():
            assert ids(read(generation)[0]) == asked[name].expected(model), name
        assert engine.stats().compiles_after_ready == 0
        assert slice_.bytes_read()[1][tensor] == rows * 48 * 4 // 2, "the second host reads its own heads"
    finally:
        engine.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl"])
def test_a_tiny_stand_in_sees(seeing: Callable[[str], Path], compile_cache: str, family: str) -> None:
    """With a narrow tower for the same images, as services are tried without chips."""
    config = EngineConfig(model=str(seeing(family)), tiny=True, compile_cache=compile_cache, **tiny_models.SMALL | SEES)
    engine = Engine.load(config)
    try:
        assert engine.tokens.loops[0].executor.arch.tower.width == 16
        one, other = (ASKED[name].answer(engine) for name in ("one", "first of all"))
        assert len(one) == len(other) == 10 and engine.stats().compiles_after_ready == 0
    finally:
        engine.shutdown()
