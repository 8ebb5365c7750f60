"""What sums over devices in bfloat16 cost: 96 layers over 32 devices, against the same model in float32.

The devices are pretended by hand, to round after each of a ring's hops, which is the worst that an all-reduce can do.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apps.arrays.quantization import product
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model import products
from tests.llm.engine.model.lm_cloud import reference
from tests.llm.engine.model.test_models import Stepper

pytestmark = pytest.mark.slow
LAYERS, HIDDEN, HEADS, DEVICES, TOKENS = 96, 256, 4, 32, 64
LAYER = reference.ARCH.layers[0]
ATTENTION = replace(
    LAYER.mixer,
    num_heads=HEADS,
    num_kv_heads=HEADS,
    head_dim=HIDDEN // HEADS,
    scale=(HIDDEN // HEADS) ** -0.5 / 16,  # the reference's queries and keys are four times as large as usual
)
ARCH = replace(
    reference.ARCH,
    layers=(replace(LAYER, mixer=ATTENTION, feed_forward=replace(LAYER.feed_forward, width=4 * HIDDEN)),) * LAYERS,
    hidden_size=HIDDEN,
)


def in_float32(x: jax.Array, weight: jax.Array, bias: jax.Array, *_: Any) -> jax.Array:
    return product(x, weight, bias).astype(x.dtype)


def by_hops(x: jax.Array, weight: jax.Array, bias: jax.Array | None, *_: Any) -> jax.Array:
    shares = (part.reshape(len(part), DEVICES, -1) for part in (x, weight))
    parts = jnp.einsum("tdi,odi->dto", *shares, preferred_element_type=jnp.float32).astype(x.dtype)
    y, _ = jax.lax.scan(lambda so_far, part: (so_far + part, None), parts[0], parts[1:])
    return y if bias is None else (y + bias).astype(x.dtype)


def logits(stepper: Stepper) -> np.ndarray:
    """Layer by layer: one program of 96 layers would take minutes to compile."""
    executor = stepper.executor
    shape = StepShape(TOKENS, 8, executor.max_pages)
    step = shape.host()
    step.add(list(range(2, 2 + TOKENS)), TOKENS, range(3, 3 + executor.max_pages), decoding=False)
    batch = shape.unpack(jnp.asarray(step.packed))
    hidden, _ = executor.decoder.hidden(executor.params, batch, batch.tokens, executor.caches)
    return np.asarray(executor.decoder.logits(executor.params, hidden))


def test_rounding_each_hop(tmp_path: Path, compile_cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference.save(tmp_path, ARCH)
    found = {}
    for name, dtype, row_parallel in (
        ("float32", "float32", in_float32),
        ("sums in float32", "bfloat16", in_float32),
        ("sums in bfloat16", "bfloat16", by_hops),
    ):
        monkeypatch.setattr(products, "row_parallel", row_parallel)
        found[name] = logits(Stepper(tmp_path, compile_cache, ARCH, dtype=dtype, attention="xla"))
    exact = found.pop("float32")
    errors = {name: float(np.std(logits - exact) / np.std(exact)) for name, logits in found.items()}
    print(errors)
    assert errors["sums in float32"] < errors["sums in bfloat16"] < 2 * errors["sums in float32"] < 0.1
