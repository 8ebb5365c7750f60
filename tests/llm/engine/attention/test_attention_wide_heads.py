"""Heads wider than 128 channels, which the Pallas kernel's cache holds in several arrays, against plain XLA."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from apps.llm.engine.attention.pallas import PallasAttention
from apps.llm.engine.attention.sharded import attend
from apps.llm.engine.attention.spec import QKV, AttentionSpec, KVScales
from apps.llm.engine.attention.xla import XlaAttention
from apps.llm.engine.execute.step import StepShape

LENGTHS = (12, 5)
SPECS = {
    int8: AttentionSpec(kv_heads=heads, group=1, head_dim=256, page_size=16, scale=256**-0.5)
    for int8, heads in ((False, 2), (True, 4))
}


def two_steps(impl: Any, int8: bool, both_ways: bool) -> list[np.ndarray]:
    """Two prompts, one with an image, then one more token of each: the attention's output at every token."""
    spec = replace(SPECS[int8], both_ways=both_ways)
    mesh = Mesh(np.array(jax.devices()[:1]), ("tensor",))
    dtype = jnp.dtype(jnp.int8 if int8 else jnp.bfloat16)
    cache = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), impl.cache(spec, 8, dtype))
    scale = jnp.full((spec.kv_heads, spec.head_dim), 0.03)
    rng, found = np.random.default_rng(0), []
    for shape, new in ((StepShape(24, 2, 1, spans=both_ways), LENGTHS), (StepShape(8, 2, 1), (1, 1))):
        step = shape.host()
        if shape.spans:
            step._part("spans")[0] = 2, 7, 9
        for i, (tokens, before) in enumerate(zip(new, (0, 0) if new is LENGTHS else LENGTHS)):
            step.add([0] * tokens, before + tokens, [1 + i], decoding=False)
        batch = shape.unpack(jnp.asarray(step.packed))
        q = rng.standard_normal((shape.tokens, spec.kv_heads, spec.group, spec.head_dim))
        k, v = rng.standard_normal((2, shape.tokens, spec.kv_heads, spec.head_dim))
        q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in (q, k, v))
        plan, scales = impl.plan(batch, spec), KVScales(scale, scale) if int8 else None
        out, cache = attend(impl, QKV(q, k, v), cache, plan, batch, spec, mesh, scales)
        found.append(np.asarray(out[: sum(new)], np.float32))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("both_ways", [False, True])
def test_wide_heads_agree_with_xla(int8: bool, both_ways: bool, interpreted: None) -> None:
    caches = PallasAttention().cache(SPECS[int8], 8, jnp.dtype(jnp.int8 if int8 else jnp.bfloat16))
    assert [part.shape for part in caches] == [(8, 16, 4 if int8 else 2, 256)] * 2
    for kernel, plain in zip(two_steps(PallasAttention(), int8, both_ways), two_steps(XlaAttention(), int8, both_ways)):
        assert np.abs(kernel - plain).max() <= 0.02 * np.abs(plain).max()
