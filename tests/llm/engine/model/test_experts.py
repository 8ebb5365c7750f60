"""Experts: the loop over blocks against every expert computed for every token, and what it leaves unread."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from apps.llm.engine.model import experts
from apps.llm.engine.model.architecture import Experts
from apps.llm.engine.model.quantization import QuantArray, Weight, quantize

COUNT, HIDDEN, WIDTH = 16, 24, 40
RANDOM = np.random.default_rng(3)
INTO = RANDOM.normal(size=(COUNT * 2 * WIDTH, HIDDEN)).astype(np.float32)
DOWN = RANDOM.normal(size=(COUNT * HIDDEN, WIDTH)).astype(np.float32)


def picked_at_random(tokens: int, per_token: int) -> np.ndarray:
    return np.stack([RANDOM.permutation(COUNT)[:per_token] for _ in range(tokens)])


def feed_forward(x: np.ndarray, shares: np.ndarray, picked: np.ndarray, into: Weight, down: Weight) -> np.ndarray:
    of = Experts(COUNT, picked.shape[1], WIDTH, renormalized=True, layers=(True,))
    mesh = Mesh(jax.devices()[:1], ("tensor",))
    run = jax.jit(lambda *given: experts.feed_forward(*given, lambda gate, up: jax.nn.silu(gate) * up, of, mesh, False))
    weights = experts.ExpertWeights(into, down)
    return np.asarray(run(jnp.array(x), jnp.array(shares), jnp.array(picked, jnp.int32), weights))


def dense(x: np.ndarray, shares: np.ndarray, picked: np.ndarray, into: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Every expert on every token, in float64."""
    both = np.einsum("th,eoh->teo", x, into.reshape(COUNT, 2 * WIDTH, HIDDEN), dtype=np.float64)
    gate, up = np.split(both, 2, axis=-1)
    each = np.einsum("tew,ehw->teh", gate / (1 + np.exp(-gate)) * up, down.reshape(COUNT, HIDDEN, WIDTH))
    weights = np.zeros((len(x), COUNT + 1))
    for token, (row, of) in enumerate(zip(shares, picked)):
        weights[token, of] += row
    return np.einsum("te,teh->th", weights[:, :COUNT], each)


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("tokens", [1, 7, 64, 300])
@pytest.mark.parametrize("load", ["random", "one expert takes all", "some are padding"])
def test_the_same_as_all_experts_on_all_tokens(tokens: int, load: str) -> None:
    picked = picked_at_random(tokens, 4)
    if load == "one expert takes all":
        picked[:, 0] = np.where((picked == 5).any(axis=1), picked[:, 0], 5)
    elif load == "some are padding":
        picked[tokens // 2 :] = COUNT
    x, shares = RANDOM.normal(size=(tokens, HIDDEN)).astype(np.float32), RANDOM.random((tokens, 4), np.float32)
    found = feed_forward(x, shares, picked, jnp.array(INTO), jnp.array(DOWN))
    if load == "some are padding":
        assert (found[tokens // 2 :] == 0).all()
    assert close(found, dense(x, shares, picked, INTO, DOWN))


def test_int8() -> None:
    into, down = quantize(jnp.array(INTO)), quantize(jnp.array(DOWN))
    x, shares = RANDOM.normal(size=(50, HIDDEN)).astype(np.float32), RANDOM.random((50, 2), np.float32)
    picked = picked_at_random(50, 2)
    widened = [np.asarray(weight.values * weight.scale[:, None]) for weight in (into, down)]
    assert isinstance(into, QuantArray)
    assert close(feed_forward(x, shares, picked, into, down), dense(x, shares, picked, *widened))


def test_experts_that_no_token_takes_are_not_read() -> None:
    """Their weights are NaN here."""
    picked = RANDOM.permuted(np.tile([2, 9, 11], (40, 1)), axis=1)[:, :2]
    used = np.isin(np.arange(COUNT), picked)[:, None, None]
    into, down = INTO.reshape(COUNT, -1, HIDDEN), DOWN.reshape(COUNT, -1, WIDTH)
    missing = [np.where(used, weight, np.nan).reshape(-1, weight.shape[-1]) for weight in (into, down)]
    x, shares = RANDOM.normal(size=(40, HIDDEN)).astype(np.float32), RANDOM.random((40, 2), np.float32)
    found = feed_forward(x, shares, picked, *map(jnp.array, missing))
    assert close(found, dense(x, shares, picked, INTO, DOWN))


@pytest.mark.parametrize("renormalized", [False, True])
def test_routing(renormalized: bool) -> None:
    logits = RANDOM.normal(size=(9, COUNT)).astype(np.float32)
    of = Experts(COUNT, 3, WIDTH, renormalized, (True,))
    shares, picked = experts.route(jnp.array(logits), of)
    assert (np.asarray(picked) == np.argsort(-logits, axis=1)[:, :3]).all()
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = np.take_along_axis(likely, np.asarray(picked), axis=1)
    assert np.allclose(shares, expected / expected.sum(axis=1, keepdims=True) if renormalized else expected, atol=1e-6)
