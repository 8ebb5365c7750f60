"""Sampling against numpy, on the device's own code: which tokens may come, how often, and their log probabilities."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from apps.llm.api import MAX_BIAS, TOP_LOGPROBS
from apps.llm.engine.execute.sampling import SamplingState, TokenConstraints, sample, start_slot
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.execute.vocabulary_scans import weighted_choice
from apps.llm.engine.executor_protocol import Tokens
from tests.llm.engine import tiny_models

SEQS, VOCAB, ROWS = 16, 50, 20
LARGER = 300  # a vocabulary of two blocks and a part of one
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=VOCAB).astype(np.float32) * 2
LARGER_LOGITS = RNG.normal(size=LARGER).astype(np.float32) * 2
ALONE = Mesh(jax.devices()[:1], ("tensor",))
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repetition": 1.0, "top_k": 0, "logprobs": 0}
run = jax.jit(
    lambda logits, packed, state, constraints, shape: sample(logits, shape.unpack(packed), state, constraints, ALONE),
    static_argnums=4,
)


def constraints(
    allowed: Sequence[int] | None = None, bias: dict[int, float] | None = None, vocab: int = VOCAB
) -> TokenConstraints:
    words = np.full((SEQS, -(-vocab // 32)), 0xFFFFFFFF, np.uint32)
    if allowed is not None:
        words[:] = 0
        for token in allowed:
            words[:, token // 32] |= np.uint32(1 << token % 32)
    ids, values = np.zeros((SEQS, MAX_BIAS), np.int32), np.zeros((SEQS, MAX_BIAS), np.float32)
    for i, (token, value) in enumerate((bias or {}).items()):
        ids[:, i], values[:, i] = token, value
    return TokenConstraints(words, ids, values, np.array([allowed is not None, bool(bias)], np.int32))


def draw(settings: Sequence[dict], logits=LOGITS, state=None, more=None, position: int = 5):
    """One step: a sequence for each of `settings` (the rest is padding); what was sampled, and the state after."""
    step = StepShape(SEQS, SEQS, 2).host()
    for i, changes in enumerate(settings):
        step.add([0], position, [1], False, **({"row": i, "seed": i} | NEUTRAL | changes))
    vocab = len(logits)
    logits = np.broadcast_to(logits, (SEQS, vocab)).astype(np.float32)
    state = state or SamplingState.empty(ROWS, vocab)
    packed, state = run(logits, step.packed, state, constraints(vocab=vocab) if more is None else more, step.shape)
    return Tokens.unpack(np.asarray(packed)), state


def many(count: int, logits=LOGITS, more=None, **settings) -> np.ndarray:
    """Tokens drawn with seeds 0, 1, 2 ..."""
    tokens = [
        draw([settings | {"seed": first + i} for i in range(SEQS)], logits, None, more)[0].ids
        for first in range(0, count, SEQS)
    ]
    return np.concatenate(tokens)[:count]


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def kept(logits: np.ndarray, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """The distribution to draw from, by sorting. Tokens as likely as the last one kept are kept too."""
    p = softmax(logits / temperature)
    if 0 < top_k < len(p):
        p = np.where(p >= np.sort(p)[-top_k], p, 0)
        p /= p.sum()
    if top_p < 1:
        order = np.argsort(-p)
        last = np.searchsorted(np.cumsum(p[order]), top_p - 1e-7)
        p = np.where(p >= p[order[last]], p, 0)
    p = np.where(p >= min_p * p.max(), p, 0)
    return p / p.sum()


def test_greedy_takes_the_likeliest_first_of_equals() -> None:
    logits = LOGITS.copy()
    logits[[30, 7]] = logits.max() + 1
    assert set(many(SEQS, logits, temperature=0.0)) == {7}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 1},
        {"top_k": 5},
        {"top_k": VOCAB + 3},
        {"top_p": 0.5},
        {"top_p": 0.05},
        {"min_p": 0.2},
        {"top_k": 12, "top_p": 0.8, "min_p": 0.05, "temperature": 1.5},
    ],
    ids=str,
)
def test_distribution(settings: dict) -> None:
    check_distribution(LOGITS, settings)


@pytest.mark.parametrize("settings", [{}, {"top_k": 40, "top_p": 0.9}], ids=str)
def test_distribution_over_blocks(settings: dict) -> None:
    check_distribution(LARGER_LOGITS, settings)


def check_distribution(logits: np.ndarray, settings: dict) -> None:
    """Chi-square over the tokens that may come, at 99.9 %; none else ever comes."""
    count = 4096
    expected = kept(logits, **settings) * count
    seen = np.bincount(many(count, logits, **settings), minlength=len(logits))
    assert not seen[expected == 0].any()
    common = expected >= 5
    bins = np.append(expected[common], expected[~common].sum() + 1e-9), np.append(seen[common], seen[~common].sum())
    chi = float(((bins[1] - bins[0]) ** 2 / bins[0])[bins[0] > 1].sum())
    freedom = max(1, int(common.sum()) - 1)
    assert chi < freedom + 4.4 * np.sqrt(2 * freedom) + 8
    if settings and settings.get("temperature", 1) == 1 and (expected > 0).sum() <= 12:
        assert set(np.flatnonzero(seen)) == set(np.flatnonzero(expected)), "each that may come does"


def test_the_number_says_which_token() -> None:
    """All along the sum, and at both ends of it; tokens and whole blocks of no weight lie between."""
    count = 5000
    weights = np.exp(RNG.normal(size=LARGER) * 2).astype(np.float32)
    weights[RNG.random(LARGER) < 0.5] = 0
    weights[128:256] = 0
    weights[[0, LARGER - 1]] = 0
    below_one = np.nextafter(np.float32(1), np.float32(0))
    numbers = np.concatenate([[0, below_one], RNG.random(count - 2)]).astype(np.float32)
    chosen = np.asarray(jax.jit(weighted_choice)(np.broadcast_to(weights, (count, LARGER)), numbers))
    assert (weights[chosen] > 0).all()
    assert (chosen[0], chosen[1]) == (np.flatnonzero(weights)[0], np.flatnonzero(weights)[-1])
    cumulated = np.cumsum(weights.astype(np.float64)) / weights.sum(dtype=np.float64)
    near_an_edge = np.abs(cumulated[None] - numbers[:, None]).min(axis=1) < 1e-6
    right = np.searchsorted(cumulated, numbers, side="right")
    assert (chosen == right)[~near_an_edge].all() and near_an_edge.mean() < 0.01


@pytest.mark.parametrize("settings", [{"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.9}], ids=str)
def test_equals_at_the_edge_all_stay(settings: dict) -> None:
    logits = np.full(VOCAB, -20.0, np.float32)
    logits[[4, 9, 20, 40, 45]] = [3, 2, 2, 2, 0] if "top_k" in settings else [2, 2, 2, 2, 0]
    assert set(many(256, logits, **settings)) == {4, 9, 20, 40}


def test_settings_of_neighbours_and_places_do_not_matter() -> None:
    mine = {"seed": 77, "temperature": 1.3, "top_p": 0.9, "row": 3}
    others = [{"temperature": 0.0, "row": 10 + i, "repetition": 1.7, "logprobs": 1} for i in range(7)]
    alone = int(draw([mine])[0].ids[0])
    for place in range(8):
        assert int(draw([*others[:place], mine, *others[place:]])[0].ids[place]) == alone


def test_seed_and_position_make_the_number() -> None:
    assert len(set(many(64))) > 8
    tokens = [int(draw([{"seed": 5}], position=p)[0].ids[0]) for p in range(1, 40)]
    assert len(set(tokens)) > 8
    assert tokens == [int(draw([{"seed": 5}], position=p)[0].ids[0]) for p in range(1, 40)]


def test_penalties() -> None:
    state = SamplingState.empty(ROWS, VOCAB)
    prompt, answer = np.full(40, -1, np.int32), np.full(40, -1, np.int32)
    prompt[:5], answer[:6] = [1, 2, 2, 3, 49], [3, 3, 3, 4, 0, 49]
    state = start_slot(state, np.int32(2), prompt, answer)
    settings = {"presence": 0.7, "frequency": 0.4, "repetition": 1.3, "row": 2, "temperature": 1.0, "top_k": 1}
    count = np.bincount(answer[:6], minlength=VOCAB)
    known = (count > 0) | np.isin(np.arange(VOCAB), prompt[:5])
    for seed in range(60):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=VOCAB).astype(np.float32) * 0.5
        logits[[0, 1, 3, 4, 49]] += rng.uniform(0.5, 4, 5)  # so that the penalties decide
        expected = np.where(known, np.where(logits > 0, logits / 1.3, logits * 1.3), logits)
        expected = expected - 0.4 * count - 0.7 * (count > 0)
        sampled, after = draw([settings, {"row": 5, "temperature": 0.0}], logits, state)
        assert sampled.ids[0] == expected.argmax()
        assert sampled.ids[1] == logits.argmax(), "the neighbour has none"
        grown = np.asarray(after.counts[2]).astype(int) - np.asarray(state.counts[2])
        assert grown[sampled.ids[0]] == 1 and grown.sum() == 1
        assert after.last_token[2] == sampled.ids[0]


def test_padding_changes_no_row() -> None:
    _, state = draw([{"row": 4}])
    touched = np.flatnonzero(np.asarray(state.counts).any(axis=1))
    assert list(touched) == [4]


def test_padding_asks_for_nothing() -> None:
    shape = StepShape(SEQS, SEQS, 2)
    step = shape.host()
    step.add([0], 1, [1], False, **NEUTRAL | {"temperature": 0.0})
    rows = shape.unpack(jnp.asarray(step.packed)).sampling
    assert not (rows.temperature > 0).any() and not rows.logprobs.any()
    assert not ((rows.presence != 0) | (rows.frequency != 0) | (rows.repetition != 1)).any()


def test_bias_and_mask() -> None:
    bias = {3: 4.0, 11: -100.0, 49: 2.5, 0: 1.0}
    expected = LOGITS.copy()
    for token, value in bias.items():
        expected[token] += value
    allowed = [0, 3, 17, 31, 32, 49]
    both = np.full(VOCAB, -np.inf, np.float32)
    both[allowed] = expected[allowed]
    assert set(many(2048, more=constraints(allowed))) <= set(allowed)
    assert set(many(512, more=constraints([31]))) == {31}
    seen = np.bincount(many(4096, more=constraints(allowed, bias)), minlength=VOCAB) / 4096
    assert np.abs(seen - softmax(both)).max() < 0.03
    seen = np.bincount(many(4096, more=constraints(None, bias)), minlength=VOCAB) / 4096
    assert np.abs(seen - softmax(expected)).max() < 0.03
    assert set(many(SEQS, more=constraints(allowed, bias), temperature=0.0)) == {int(both.argmax())}


def test_the_mask_finds_every_token() -> None:
    for token in range(LARGER):
        allowed = constraints([token], vocab=LARGER)
        assert draw([{"temperature": 0.0}], LARGER_LOGITS, None, allowed)[0].ids[0] == token


def test_logprobs_are_the_models_own() -> None:
    settings = {"logprobs": 1, "temperature": 0.3, "top_k": 4, "presence": 1.0}
    sampled, _ = draw([settings | {"seed": i} for i in range(SEQS)], more=constraints(None, {2: 5.0}))
    reference = np.log(softmax(LOGITS))
    order = np.argsort(-reference)[:TOP_LOGPROBS]
    assert np.allclose(sampled.logprob, reference[sampled.ids], atol=1e-5)
    assert (sampled.top_ids == order).all()
    assert np.allclose(sampled.top_logprobs, reference[order], atol=1e-5)
    assert not draw([{}])[0].top_ids.any(), "not computed when nobody asks"


def test_large_vocabulary_and_extreme_logits() -> None:
    logits = np.full(VOCAB, -1e4, np.float32)
    logits[8] = 1e4
    assert set(many(64, logits, temperature=100.0)) == {8}
    flat = np.zeros(VOCAB, np.float32)
    assert len(set(many(1024, flat))) == VOCAB
    assert len(set(many(1024, flat, top_p=0.1))) == VOCAB, "all are equal: all stay"


@pytest.mark.slow
def test_shares_of_many_devices_are_what_one_device_samples() -> None:
    found = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("sampling_on_devices.py"))],
        env=tiny_models.environment(XLA_FLAGS=tiny_models.xla_flags(8)),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    for case in json.loads(found.stdout.splitlines()[-1]):
        assert case["log probabilities apart"] < 1e-5, case
        assert all(value for name, value in case.items() if name != "log probabilities apart"), case
