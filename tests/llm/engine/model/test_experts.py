"""Experts: the loop over blocks and the TPU kernel against all experts on all tokens, and what they leave unread."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from apps.arrays.quantization import QuantArray, Weight, quantize, values, whole_lanes
from apps.llm.engine.model.experts import kernel, mixture
from apps.llm.engine.model.experts.weights import ExpertWeights
from apps.llm.engine.model.layers import Activation, Experts

COUNT, HIDDEN, WIDTH = 16, 64, 192
VMEM = 2**20  # so little that the kernel takes 300 tokens in two parts
RANDOM = np.random.default_rng(3)
INTO = RANDOM.normal(size=(COUNT * 2 * WIDTH, HIDDEN)).astype(np.float32)
DOWN = RANDOM.normal(size=(COUNT * HIDDEN, WIDTH)).astype(np.float32)


def picked_at_random(tokens: int, per_token: int) -> np.ndarray:
    return np.stack([RANDOM.permutation(COUNT)[:per_token] for _ in range(tokens)])


def activation(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(gate) * up


def feed_forward(
    form: str, x: np.ndarray, shares: np.ndarray, picked: np.ndarray, into: Weight, down: Weight, *biases: np.ndarray
) -> np.ndarray:
    """By `form`: XLA's loop, or the TPU kernel, interpreted, with two tiles of the width (the second not full).

    The columns of `down` are filled up with noise.
    """
    of = Experts(COUNT, picked.shape[1], WIDTH, renormalized=True, activation=Activation("silu"))
    mesh = Mesh(jax.devices()[:1], ("tensor",))

    def run(*given: Any) -> jax.Array:
        if form == "xla":
            return mixture.feed_forward(*given, activation, of, mesh, False)
        chip = kernel.Chip(cores=2 if form == "two cores" else 1, vmem=VMEM)
        return kernel.feed_forward(*given, activation, of, tile=128, chip=chip, interpret=True)

    noise = RANDOM.integers(-9, 9, (COUNT * HIDDEN, whole_lanes(WIDTH) - WIDTH))
    more = jnp.array(noise, values(down).dtype)
    if isinstance(down, QuantArray):
        down = down._replace(values=jnp.concatenate([down.values, more], axis=1))
    else:
        down = jnp.concatenate([down, more], axis=1)
    weights = ExpertWeights(into, down, *map(jnp.array, biases))
    return np.asarray(jax.jit(run)(jnp.array(x), jnp.array(shares), jnp.array(picked, jnp.int32), weights))


def dense(
    x: np.ndarray, shares: np.ndarray, picked: np.ndarray, into: np.ndarray, down: np.ndarray, *biases: np.ndarray
) -> np.ndarray:
    """Every expert on every token, in float64."""
    first, last = biases or (np.zeros(COUNT * 2 * WIDTH), np.zeros(COUNT * HIDDEN))
    both = np.einsum("th,eoh->teo", x, into.reshape(COUNT, 2 * WIDTH, HIDDEN), dtype=np.float64)
    gate, up = np.split(both + first.reshape(COUNT, 2 * WIDTH), 2, axis=-1)
    each = np.einsum("tew,ehw->teh", gate / (1 + np.exp(-gate)) * up, down.reshape(COUNT, HIDDEN, WIDTH))
    each += last.reshape(COUNT, HIDDEN)
    weights = np.zeros((len(x), COUNT + 1))
    for token, (row, of) in enumerate(zip(shares, picked)):
        weights[token, of] += row
    return np.einsum("te,teh->th", weights[:, :COUNT], each)


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max())


FORMS = ["xla", "kernel"]
SLOW = pytest.mark.slow
LOADS = ["random", "one expert takes all", "some are padding"]


@pytest.mark.parametrize(
    ("form", "tokens", "load"),
    [
        *(("xla", tokens, load) for tokens in (1, 300) for load in LOADS),
        *(("kernel", 64, load) for load in LOADS),
        *(pytest.param("xla", tokens, load, marks=SLOW) for tokens in (7, 64) for load in LOADS),
        *(pytest.param("kernel", tokens, load, marks=SLOW) for tokens in (1, 300) for load in LOADS),
        ("two cores", 40, "one expert takes all"),
    ],
)
def test_the_same_as_all_experts_on_all_tokens(form: str, tokens: int, load: str) -> None:
    picked = picked_at_random(tokens, 4)
    if load == "one expert takes all":
        picked[:, 0] = np.where((picked == 5).any(axis=1), picked[:, 0], 5)
    elif load == "some are padding":
        picked[tokens // 2 :] = COUNT
    x, shares = RANDOM.normal(size=(tokens, HIDDEN)).astype(np.float32), RANDOM.random((tokens, 4), np.float32)
    found = feed_forward(form, x, shares, picked, jnp.array(INTO), jnp.array(DOWN))
    if load == "some are padding":
        assert (found[tokens // 2 :] == 0).all()
    assert close(found, dense(x, shares, picked, INTO, DOWN))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [50, pytest.param(130, marks=SLOW)])
def test_int8_with_biases(tokens: int, form: str) -> None:
    biases = [RANDOM.normal(size=COUNT * size).astype(np.float32) for size in (2 * WIDTH, HIDDEN)]
    into, down = jax.jit(quantize)(jnp.array(INTO)), jax.jit(quantize)(jnp.array(DOWN))
    x, shares = RANDOM.normal(size=(tokens, HIDDEN)).astype(np.float32), RANDOM.random((tokens, 2), np.float32)
    picked = picked_at_random(tokens, 2)
    widened = [np.asarray(weight.values * weight.scale[:, None]) for weight in (into, down)]
    assert isinstance(into, QuantArray)
    found = feed_forward(form, x, shares, picked, into, down, *biases)
    assert close(found, dense(x, shares, picked, *widened, *biases))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [40, pytest.param(100, marks=SLOW)])
def test_a_token_that_is_not_a_number_spoils_no_other(tokens: int, form: str) -> None:
    x, shares = RANDOM.normal(size=(tokens, HIDDEN)).astype(np.float32), RANDOM.random((tokens, 2), np.float32)
    picked = picked_at_random(tokens, 2)
    expected = dense(x, shares, picked, INTO, DOWN)
    x[3], picked[5:9], x[6] = np.nan, COUNT, np.inf
    found, others = feed_forward(form, x, shares, picked, jnp.array(INTO), jnp.array(DOWN)), [0, 1, 2, 4]
    assert close(found[others], expected[others]) and close(found[9:], expected[9:]) and (found[[5, 7, 8]] == 0).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [40, pytest.param(100, marks=SLOW)])
def test_experts_that_no_token_takes_are_not_read(tokens: int, form: str) -> None:
    """Their weights are NaN here."""
    picked = RANDOM.permuted(np.tile([2, 9, 11], (tokens, 1)), axis=1)[:, :2]
    used = np.isin(np.arange(COUNT), picked)[:, None, None]
    into, down = INTO.reshape(COUNT, -1, HIDDEN), DOWN.reshape(COUNT, -1, WIDTH)
    missing = [np.where(used, weight, np.nan).reshape(-1, weight.shape[-1]) for weight in (into, down)]
    x, shares = RANDOM.normal(size=(tokens, HIDDEN)).astype(np.float32), RANDOM.random((tokens, 2), np.float32)
    found = feed_forward(form, x, shares, picked, *map(jnp.array, missing))
    assert close(found, dense(x, shares, picked, INTO, DOWN))


@pytest.mark.parametrize("renormalized", [False, True])
def test_routing(renormalized: bool) -> None:
    logits = RANDOM.normal(size=(9, COUNT)).astype(np.float32)
    of = Experts(COUNT, 3, WIDTH, renormalized, Activation("silu"))
    shares, picked = mixture.route(jnp.array(logits), of)
    assert (np.asarray(picked) == np.argsort(-logits, axis=1)[:, :3]).all()
    likely = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = np.take_along_axis(likely, np.asarray(picked), axis=1)
    assert np.allclose(shares, expected / expected.sum(axis=1, keepdims=True) if renormalized else expected, atol=1e-6)
