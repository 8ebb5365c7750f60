"""Sampling shared out over eight pretended devices (XLA_FLAGS) against one device's: python sampling_on_devices.py"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.llm.api import MAX_BIAS
from apps.llm.engine.execute.sampling import SamplingState, TokenConstraints, sample
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.executor_protocol import Tokens

ROWS = 40
RNG = np.random.default_rng(3)


def settings(i: int) -> dict:
    """Of a sequence: all kinds beside each other."""
    kinds = (
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5, "logprobs": 1},
        {"temperature": 1.5, "top_p": 0.8, "presence": 0.5, "frequency": 0.3},
        {"temperature": 0.0, "repetition": 1.5, "logprobs": 1},
        {"temperature": 2.0, "min_p": 0.1},
    )
    return {"top_p": 1.0, "repetition": 1.0, "seed": i, "row": ROWS - 2 - i} | kinds[i % len(kinds)]


def compared(devices: int, seqs: int, vocab: int, used: tuple[int, int]) -> dict:
    shape = StepShape(seqs, seqs, 2)
    step = shape.host()
    for i in range(seqs - 1):  # the last is padding
        step.add([0], 5 + i, [1], False, **settings(i))
    logits = RNG.normal(size=(seqs, vocab)).astype(np.float32) * 2
    counts = RNG.integers(0, 3, (ROWS, vocab)).astype(np.int16)
    state = SamplingState(jnp.zeros(ROWS, jnp.int32), jnp.asarray(counts))
    words = RNG.integers(0, 2**32, (seqs, -(-vocab // 32)), np.uint32)
    ids = np.zeros((seqs, MAX_BIAS), np.int32)
    bias = np.zeros((seqs, MAX_BIAS), np.float32)
    ids[:, 0], bias[:, 0] = RNG.integers(0, vocab, seqs), 3.0
    constraints = TokenConstraints(words, ids, bias, np.array(used, np.int32))

    def on(count: int) -> tuple:
        mesh = Mesh(np.array(jax.devices()[:count]), ("tensor",))
        given = logits
        if vocab % mesh.size == 0:  # as the decoder leaves them
            given = jax.device_put(logits, NamedSharding(mesh, P(None, "tensor")))
        run = jax.jit(lambda logits, packed: sample(logits, shape.unpack(packed), state, constraints, mesh))
        return run(given, step.packed)

    (packed, after), (expected, expected_after) = on(devices), on(1)
    whole = packed.is_fully_replicated and all(part.is_fully_replicated for part in after)
    found, expected = Tokens.unpack(np.asarray(packed)), Tokens.unpack(np.asarray(expected))
    asked = [i for i in range(seqs - 1) if settings(i).get("logprobs")]  # the others' may be there or not
    apart = [np.abs(getattr(found, name) - getattr(expected, name))[asked] for name in ("logprob", "top_logprobs")]
    return {
        "case": [devices, seqs, vocab],
        "same tokens": bool((found.ids == expected.ids).all()),
        "same alternatives": bool((found.top_ids == expected.top_ids)[asked].all()),
        "log probabilities apart": float(max(part.max(initial=0) for part in apart)),
        "same state": all(bool((np.asarray(a) == np.asarray(b)).all()) for a, b in zip(after, expected_after)),
        "whole everywhere": whole,
    }


print(
    json.dumps(
        [
            compared(8, 16, 96, (1, 1)),
            compared(8, 4, 96, (0, 0)),  # fewer sequences than devices
            compared(3, 16, 96, (0, 1)),  # shares that are not even
            compared(8, 16, 100, (1, 0)),  # a vocabulary that does not divide
        ]
    )
)
