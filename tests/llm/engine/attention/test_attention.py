"""The attentions against a dense one written down plainly, against each other, and in any company."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh

from apps.llm.api import PromptImage
from apps.llm.engine.attention.pallas import PallasAttention
from apps.llm.engine.attention.sharded import attend
from apps.llm.engine.attention.spec import QKV, AttentionSpec, KVScales
from apps.llm.engine.attention.xla import XlaAttention
from apps.llm.engine.cpu.attention import CpuAttention
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.images.placed import PlacedImages
from tests.processor import HAS_AVX512

MESH = Mesh(np.array(jax.devices()[:1]), ("tensor",))
SPEC = AttentionSpec(kv_heads=2, group=2, head_dim=32, page_size=16, scale=0.3)
OTHER = {"softcap": 3.0, "window": 150, "page_size": 128}
LONGEST = 384  # positions that a page table covers
BATCHES = {  # (tokens in the cache after the step, tokens that the step computes), decodes first
    "decodes": ((300, 1), (1, 1), (128, 1), (129, 1), (17, 1)),
    "prefills": ((33, 33), (2, 2), (20, 20)),
    "chunks": ((180, 30), (140, 13), (129, 16)),
    "mixed": ((200, 1), (16, 1), (5, 1), (300, 37), (1, 1), (19, 19)),
}


@dataclass
class Case:
    """A step's queries, keys and values, and what the cache holds from before."""

    lengths: Sequence[tuple[int, int]]  # (kv_len, q_len) of each sequence
    q: list[np.ndarray]  # each [q_len, kv_heads, group, head_dim]
    k: list[np.ndarray]  # each [kv_len, kv_heads, head_dim]
    v: list[np.ndarray]


def make(lengths: Sequence[tuple[int, int]], spec: AttentionSpec = SPEC) -> Case:
    """A sequence's numbers follow from its lengths alone, so that they are the same in any batch."""

    def draw(kind: int, length: int, kv_len: int, *shape: int) -> np.ndarray:
        return np.random.default_rng([kind, kv_len]).normal(size=(length, *shape)).astype(np.float32) * 1.5

    heads = spec.kv_heads, spec.head_dim
    return Case(
        lengths,
        [draw(0, n, m, spec.kv_heads, spec.group, spec.head_dim) for m, n in lengths],
        [draw(1, m, m, *heads) for m, _ in lengths],
        [draw(2, m, m, *heads) for m, _ in lengths],
    )


Images = Mapping[int, Sequence[tuple[int, int]]]
"""Where images begin and end, by their sequence's number."""


def dense(case: Case, spec: AttentionSpec, images: Images = MappingProxyType({})) -> list[np.ndarray]:
    outputs = []
    for number, ((kv_len, q_len), q, k, v) in enumerate(zip(case.lengths, case.q, case.k, case.v)):
        scores = np.einsum("qhgd,khd->hgqk", q.astype(np.float64), k) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * np.tanh(scores / spec.softcap)
        query, key = np.arange(kv_len - q_len, kv_len)[:, None], np.arange(kv_len)[None]
        seen = key <= query
        for start, end in images.get(number, ()):
            seen |= (start <= query) & (query < end) & (start <= key) & (key < end)
        if spec.window is not None:
            seen &= key > query - spec.window
        weights = np.where(seen, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0)
        weights /= weights.sum(axis=-1, keepdims=True)
        outputs.append(np.einsum("hgqk,khd->qhgd", weights, v))
    return outputs


@cache
def program(impl: Any, spec: AttentionSpec, shape: StepShape):
    @jax.jit
    def run(q, k, v, pages, packed, scales):
        batch = shape.unpack(packed)
        return attend(impl, QKV(q, k, v), pages, impl.plan(batch, spec), batch, spec, MESH, scales)

    return run


def paged(
    case: Case,
    impl: Any,
    spec: AttentionSpec,
    shape: tuple[int, int],
    dtype=np.float32,
    scales=None,
    stale=0,
    images: Images = MappingProxyType({}),
):
    """The same through the paged cache: past keys lie there already, the step's own are written by it.

    `stale` is everywhere else: past the end of each sequence's last page, and in all pages that are nobody's.
    """
    shape = StepShape(*shape, LONGEST // spec.page_size, spans=spec.both_ways)
    step, per_seq, parts = shape.host(), LONGEST // spec.page_size, list[tuple[int, ...]]()
    order = np.random.default_rng(3).permutation(np.arange(1, shape.seqs * per_seq + 1))
    stored = np.int8 if scales is not None else dtype
    past_k = np.full((len(order) + 1, spec.page_size, spec.kv_heads, spec.head_dim), stale, stored)
    past_v = np.copy(past_k)

    def keep(x: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
        return x.astype(dtype) if scale is None else np.clip(np.round(x / np.asarray(scale)), -127, 127)

    for i, (kv_len, q_len) in enumerate(case.lengths):
        pages, at = order[i * per_seq : (i + 1) * per_seq], np.arange(kv_len - q_len)
        slot = pages[at // spec.page_size], at % spec.page_size
        past_k[slot] = keep(case.k[i][: len(at)], scales and scales.k)
        past_v[slot] = keep(case.v[i][: len(at)], scales and scales.v)
        first = step.add([0] * q_len, kv_len, pages[: -(-kv_len // spec.page_size)], q_len == 1)
        placed = [PromptImage(start, (1, end - start), b"", b"") for start, end in images.get(i, ())]
        if placed:
            found = PlacedImages(placed, False, b"", both_ways=True).spans(kv_len - q_len, kv_len)
            parts += [(first + at, *part) for at, *part in found]
    if parts:
        step._part("spans")[: len(parts)] = parts
    if isinstance(impl, PallasAttention):
        pages = np.stack([past_k, past_v], axis=3).reshape(*past_k.shape[:2], 2 * spec.kv_heads, -1)
        want = impl.cache(spec, len(pages), jnp.dtype(stored))
        pages = np.pad(pages, [(0, b - a) for a, b in zip(pages.shape, want.shape)])
    else:
        if isinstance(impl, CpuAttention):
            past_k, past_v = past_k.transpose(0, 2, 3, 1), past_v.transpose(0, 2, 1, 3)
        want = impl.cache(spec, len(past_k), jnp.dtype(stored))
        pages = type(want)(*(np.ascontiguousarray(x).view(like.dtype) for x, like in zip((past_k, past_v), want)))

    def new(parts: list[np.ndarray]) -> np.ndarray:
        tokens = np.concatenate([part[len(part) - n :] for part, (_, n) in zip(parts, case.lengths)])
        return np.pad(tokens, ((0, shape.tokens - len(tokens)), *[(0, 0)] * (tokens.ndim - 1))).astype(dtype)

    out, _ = program(impl, spec, shape)(new(case.q), new(case.k), new(case.v), pages, step.packed, scales)
    cuts = np.cumsum([0, *(n for _, n in case.lengths)])
    return [np.asarray(out[start:stop]) for start, stop in pairwise(cuts)]


def assert_close(got: list[np.ndarray], wanted: list[np.ndarray], tolerance: float) -> None:
    scale = max(np.abs(part).max() for part in wanted)
    for mine, other in zip(got, wanted):
        assert np.abs(mine.astype(np.float64) - other).max() <= tolerance * scale


XLA, PALLAS, CPU = XlaAttention(), PallasAttention(), CpuAttention()
HERE = pytest.mark.parametrize("impl", [XLA, CPU], ids=["xla", "cpu"])
SLOW = pytest.mark.slow
EACH_BATCH = pytest.mark.parametrize("name", [pytest.param(name, marks=[SLOW] * (name != "mixed")) for name in BATCHES])
SHAPES = {"decodes": (8, 8), "prefills": (64, 8), "chunks": (64, 8), "mixed": (64, 8)}


@EACH_BATCH
@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"window": 24, "page_size": 32}, marks=SLOW), OTHER, {"kv_heads": 1, "group": 3}],
    ids=str,
)
@HERE
def test_it_is_the_dense_one(impl: Any, name: str, changes: dict) -> None:
    spec = replace(SPEC, **changes)
    case = make(BATCHES[name], spec)
    assert_close(paged(case, impl, spec, SHAPES[name]), dense(case, spec), 2e-6)


@pytest.mark.parametrize("impl", [XLA, pytest.param(CPU, marks=SLOW)], ids=["xla", "cpu"])
@EACH_BATCH
def test_int8_cache(impl: Any, name: str) -> None:
    case, rng = make(BATCHES[name]), np.random.default_rng(0)
    scales = KVScales(*(rng.uniform(0.03, 0.06, (SPEC.kv_heads, SPEC.head_dim)).astype(np.float32) for _ in "kv"))
    rounded = replace(
        case,
        k=[np.clip(np.round(k / scales.k), -127, 127) * scales.k for k in case.k],
        v=[np.clip(np.round(v / scales.v), -127, 127) * scales.v for v in case.v],
    )
    assert_close(paged(case, impl, SPEC, SHAPES[name], scales=scales), dense(rounded, SPEC), 1e-5)


@EACH_BATCH
@pytest.mark.parametrize("changes", [{}, pytest.param(OTHER, marks=SLOW)], ids=str)
def test_pallas_kernel_agrees(name: str, changes: dict, interpreted: None) -> None:
    spec = replace(SPEC, **changes)
    case = make(BATCHES[name], spec)
    kernel = paged(case, PALLAS, spec, SHAPES[name])
    assert_close(kernel, dense(case, spec), 1e-5)
    assert_close(kernel, paged(case, XLA, spec, SHAPES[name]), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("int8", [False, True])
def test_pallas_kernel_agrees_in_the_types_of_a_tpu(int8: bool, interpreted: None) -> None:
    case, scale = make(BATCHES["mixed"]), np.full((SPEC.kv_heads, SPEC.head_dim), 0.05, np.float32)
    scales = KVScales(scale, scale) if int8 else None
    kernel, plain = (paged(case, impl, SPEC, (64, 8), ml_dtypes.bfloat16, scales) for impl in (PALLAS, XLA))
    assert_close(kernel, [part.astype(np.float64) for part in plain], 0.02)
    assert_close(kernel, dense(case, SPEC), 0.05)


@HERE
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(ml_dtypes.bfloat16, marks=SLOW)])
def test_a_decode_gives_the_same_bits_in_any_batch(impl: Any, dtype: Any) -> None:
    for mine in BATCHES["decodes"]:
        (alone,) = paged(make([mine]), impl, SPEC, (8, 8), dtype)
        others = [other for other in BATCHES["decodes"] if other != mine]
        for place, crowd in enumerate(((8, 8), (8, 8), (64, 8), (64, 8))):
            batch = [*others[:place], mine, *others[place:]]
            if crowd == (64, 8):
                batch += [(300, 37), (19, 19)]
            assert (paged(make(batch), impl, SPEC, crowd, dtype)[place] == alone).all()


@HERE
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(ml_dtypes.bfloat16, marks=SLOW)])
def test_a_position_gives_the_same_bits_however_the_prompt_is_cut(impl: Any, dtype: Any) -> None:
    whole = paged(make([(60, 60)]), impl, SPEC, (64, 8), dtype)[0]
    full = make([(60, 60)])
    for start, stop in ((0, 20), (20, 60), (31, 32), (59, 60), (7, 45)):
        part = Case([(stop, stop - start)], [full.q[0][start:stop]], [full.k[0][:stop]], [full.v[0][:stop]])
        for shape in ((64, 8), (8, 8)) if stop - start == 1 else ((64, 8),):
            got, want = paged(part, impl, SPEC, shape, dtype)[0], whole[start:stop]
            if impl is XLA and dtype is np.float32 and not HAS_AVX512:
                np.testing.assert_allclose(got, want, atol=2e-6)
            else:
                assert (got == want).all()


NOT_FINITE = pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
EVERY = pytest.mark.parametrize("impl", [XLA, CPU, PALLAS], ids=["xla", "cpu", "pallas"])


@EVERY
@NOT_FINITE
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("changes", [pytest.param({}, marks=SLOW), OTHER], ids=str)
def test_what_a_page_held_before_is_never_seen(
    impl: Any, bad: float, changes: dict, dtype: Any, interpreted: None
) -> None:
    """The oracle is the same step on clean pages, to the bit."""
    spec = replace(SPEC, **changes)
    for name in ("chunks", "mixed"):
        case = make(BATCHES[name], spec)
        clean, dirty = (paged(case, impl, spec, SHAPES[name], dtype, stale=stale) for stale in (0, bad))
        for alone, beside in zip(clean, dirty):
            assert (alone == beside).all()


@EVERY
@NOT_FINITE
@pytest.mark.parametrize("part", ["k", "v"])
def test_a_number_that_is_not_finite_is_seen_by_its_own_sequence_alone(
    impl: Any, bad: float, part: str, interpreted: None
) -> None:
    """And it is seen there: an answer made of it must not look sound. Others are as undisturbed, to the bit."""
    lengths = BATCHES["mixed"]
    undisturbed = paged(make(lengths), impl, SPEC, SHAPES["mixed"])
    for place, at in ((0, 100), (0, 199), (3, 299), (5, 3)):
        case = make(lengths)
        getattr(case, part)[place][at] = bad
        found = paged(case, impl, SPEC, SHAPES["mixed"])
        # An infinite key gives a weight of all or nothing, by the signs of the query: only NaN is NaN in any case.
        assert not (np.isnan(bad) or part == "v") or not np.isfinite(found[place][-1]).any()
        for other, (alone, beside) in enumerate(zip(undisturbed, found)):
            assert other == place or (alone == beside).all()
