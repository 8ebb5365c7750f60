"""The experts of one device as one Pallas kernel for TPU.

XLA's loop over experts (`experts._blocks`) waits for each expert's weights, and sorting tokens outside it takes longer
than the products. Here the weights of the experts that some token picks pass through VMEM once, a tile of their width
at a time, the next while one is multiplied; int8 becomes the activations' type there. jax's own grouped products
(`megablox`, `ragged_dot`) have no int8, and transpose the weights.

Few tokens are all multiplied by each expert, those that did not pick it for nothing: up to 64 rows take the matrix unit
no longer than loading the weights into it. Of more, an expert's tokens are gathered, and added to the results, by
products with a matrix of zeros and ones.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from apps.llm.engine.model.quantization import LANES, QuantArray, Weight, filled, values

if TYPE_CHECKING:
    from apps.llm.engine.model.architecture import Experts
    from apps.llm.engine.model.experts import ExpertWeights, Gated

NAME = "experts"
"""The kernel's name in a compiled program."""
FEW_TOKENS = 64
"""Up to so many tokens are all multiplied by each expert."""
TILE_BYTES = 4 * 2**20
"""Most bytes of an expert's weights in one step. Nothing overlaps with the first tile of a layer, so it is small."""
ROWS_OF_VMEM = 0.45
"""Part of VMEM for what a step keeps of all its tokens."""


class Chip(NamedTuple):
    """What the kernel asks of a device; `here` is of the mesh in use."""

    cores: int  # TensorCores, which share the experts
    vmem: int  # bytes for each of them

    @classmethod
    def here(cls) -> "Chip":
        info = pltpu.get_tpu_info()
        return cls(info.num_cores, info.vmem_capacity_bytes)

    def most_tokens(self, hidden: int, dtype: jnp.dtype) -> int:
        """Tokens of one call. More are split, and each part reads the weights again."""
        return max(LANES, int(self.vmem * ROWS_OF_VMEM) // (hidden * _token_itemsize(dtype)) // LANES * LANES)


def tile_of(hidden: int, width: int, itemsize: int) -> int:
    """Channels of the width in one step: the most within TILE_BYTES, whole tiles if there are such."""
    most = max(1, min(TILE_BYTES // (3 * hidden * itemsize), width) // LANES)
    whole = [lanes for lanes in range(1, most + 1) if width % (lanes * LANES) == 0]
    return (whole[-1] if whole else most) * LANES


def block_of(tokens: int, experts: "Experts") -> int:
    """Rows of one product in a step of `tokens` tokens: about twice what an expert gets on average, or all tokens."""
    if tokens <= FEW_TOKENS:
        return tokens
    average = tokens * experts.per_token // experts.count
    return min(max(16, 1 << average.bit_length()), FEW_TOKENS)


def feed_forward(
    x: jax.Array,
    shares: jax.Array,
    picked: jax.Array,
    weights: "ExpertWeights",
    gated: "Gated",
    experts: "Experts",
    tile: int | None = None,
    chip: Chip | None = None,
    interpret: Any = False,
) -> jax.Array:
    """`experts.feed_forward` on one device.

    Args:
        picked: `[T, per_token]`; numbers that are not of this device's experts count nothing.
        tile: channels of the width in one step; default: `tile_of`.
        interpret: as in `pl.pallas_call`, with `chip` given.
    """
    (tokens, hidden), block = x.shape, block_of(x.shape[0], experts)
    chip = chip or Chip.here()
    most = chip.most_tokens(hidden, x.dtype)
    if tokens > most:
        parts = [slice(start, start + most) for start in range(0, tokens, most)]
        more = weights, gated, experts, tile, chip, interpret
        return jnp.concatenate([feed_forward(x[part], shares[part], picked[part], *more) for part in parts])
    padding = -tokens % LANES if tokens > block else 0
    if padding:  # the rolls below take whole registers
        x, shares, picked = (
            jnp.pad(each, ((0, padding), (0, 0)), constant_values=fill)
            for each, fill in ((x, 0), (shares, 0), (picked, -1))
        )
    y = _call(x, shares, picked, weights, gated, block, tile, chip.cores, interpret)
    return y[:tokens] if padding else y


def _token_itemsize(dtype: jnp.dtype) -> int:
    """Bytes that a step keeps for each channel of a token: x and the result twice, x twice more, two float32 sums."""
    return 6 * jnp.dtype(dtype).itemsize + 8


def _call(
    x: jax.Array,
    shares: jax.Array,
    picked: jax.Array,
    weights: "ExpertWeights",
    gated: "Gated",
    block: int,
    tile: int | None,
    cores: int,
    interpret: Any,
) -> jax.Array:
    (tokens, hidden), per_token = x.shape, picked.shape[1]
    down, into = values(weights.down), values(weights.into)
    count, itemsize = down.shape[0] // hidden, down.dtype.itemsize
    width, inputs = into.shape[0] // (2 * count), into.shape[1]
    x = filled(x, weights.into)
    tile = min(tile or tile_of(hidden, width, itemsize), -(-width // LANES) * LANES)
    tiles = pl.cdiv(width, tile)

    # Which experts have tokens, in order, in few operations: each takes a microsecond.
    counts = jnp.sum(picked.reshape(-1, 1) == jnp.arange(count), axis=0, dtype=jnp.int32)
    before = jnp.sum((counts > 0)[:, None] & (jnp.arange(count)[:, None] <= jnp.arange(count)), axis=0)
    ids = jnp.sum(before <= jnp.arange(count)[:, None], axis=1, dtype=jnp.int32)
    used = before[-1:].astype(jnp.int32)

    def expert(core: jax.Array, turn: jax.Array, ids: Any, used: Any) -> jax.Array:
        # Past the last one its number repeats, so that nothing is read. Without any, one is read and not used.
        place = core * pl.cdiv(used[0], cores) + turn
        return jnp.minimum(ids[jnp.maximum(jnp.minimum(place, used[0] - 1), 0)], count - 1)

    def spec(shape: tuple[int, ...], tiled: int | None) -> pl.BlockSpec:
        """A block of the current expert; axis `tiled` of it follows the tiles."""

        def place(core: jax.Array, turn: jax.Array, step: jax.Array, ids: Any, _: Any, used: Any) -> tuple[Any, ...]:
            last = core * pl.cdiv(used[0], cores) + turn >= used[0]
            at = jnp.where(last, tiles - 1, step)
            return expert(core, turn, ids, used), *(at if axis == tiled else 0 for axis in range(1, len(shape)))

        return pl.BlockSpec(shape, place)

    def all_of(*shape: int) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda *_: (0,) * len(shape))

    def of_experts(array: jax.Array | None, *shape: int) -> jax.Array | None:
        return None if array is None else array.reshape(count, *shape)

    def scale(weight: Weight) -> jax.Array | None:
        return weight.scale if isinstance(weight, QuantArray) else None

    given = [
        (picked.T, all_of(per_token, tokens)),
        (shares.T, all_of(per_token, tokens)),
        (x, all_of(tokens, inputs)),
        (of_experts(into, 2, width, inputs), spec((1, 2, tile, inputs), 2)),
        (of_experts(scale(weights.into), 2, width), spec((1, 2, tile), 2)),
        (of_experts(weights.into_bias, 2, width), spec((1, 2, tile), 2)),
        (of_experts(down, hidden, down.shape[1]), spec((1, hidden, tile), 2)),
        (of_experts(scale(weights.down), 1, hidden), spec((1, 1, hidden), None)),
        (of_experts(weights.down_bias, 1, hidden), spec((1, 1, hidden), None)),
    ]
    gathers = tokens > block
    rows = pl.cdiv(tokens, block) * block

    def if_gathers(rows: int, columns: int, dtype: jnp.dtype) -> Any:
        return pltpu.VMEM((rows, columns) if gathers else (8, LANES), dtype)

    scratch = [
        pltpu.VMEM((count, tokens), jnp.float32),  # each expert's shares
        pltpu.VMEM((count, tokens), jnp.float32),  # the row of each token among its expert's, or -1
        pltpu.VMEM((tokens, hidden), jnp.float32),  # the result
        if_gathers(tokens, inputs, x.dtype),  # x without what is not a number
        if_gathers(rows, inputs, x.dtype),  # an expert's tokens
        if_gathers(rows, hidden, jnp.dtype(jnp.float32)),  # what it makes of them
    ]
    passing = 3 * tile * hidden * (2 * itemsize + x.dtype.itemsize)
    y = pl.pallas_call(
        partial(_kernel, expert_at=expert, gated=gated, block=block, width=width, tile=tile),
        out_shape=jax.ShapeDtypeStruct((cores, tokens, hidden), x.dtype if cores == 1 else jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            in_specs=[place if array is not None else None for array, place in given],
            out_specs=pl.BlockSpec((1, tokens, hidden), lambda core, *_: (core, 0, 0)),
            grid=(cores, jnp.maximum(pl.cdiv(used[0], cores), 1), tiles),
            scratch_shapes=scratch,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=int(1.5 * (tokens * hidden * _token_itemsize(x.dtype) + passing)) + 8 * 2**20,
        ),
        interpret=interpret,
        name=NAME,
    )(ids, counts, used, *(array for array, _ in given))
    return y[0] if cores == 1 else jnp.sum(y, axis=0).astype(x.dtype)


def _kernel(*refs: Any, expert_at: Callable[..., jax.Array], gated: "Gated", block: int, width: int, tile: int) -> None:
    """One tile of one expert. Names as in `_call`; tokens are rows of `x` and lanes of `picked`."""
    ids, counts, used, picked, shares, x, into, into_scale, into_bias, down, down_scale, down_bias, *written = refs
    out, share_of, row_of, total, finite, gathered, sums = written
    core, turn, step = (pl.program_id(axis) for axis in range(3))
    cores, turns, steps = (pl.num_programs(axis) for axis in range(3))
    dtype, tokens, count = x.dtype, x.shape[0], share_of.shape[0]
    expert = expert_at(core, turn, ids, used)
    rows = jnp.where(core * pl.cdiv(used[0], cores) + turn < used[0], counts[expert], 0)

    @pl.when((turn == 0) & (step == 0))
    def begin() -> None:
        total[...] = jnp.zeros_like(total)
        number = jax.lax.broadcasted_iota(jnp.int32, (count, tokens), 0)
        share, taken = jnp.zeros((count, tokens), jnp.float32), jnp.zeros((count, tokens), jnp.float32)
        for pick in range(picked.shape[0]):
            hit = picked[pick : pick + 1, :] == number
            share += jnp.where(hit, shares[pick : pick + 1, :], 0.0)
            taken += jnp.where(hit, 1.0, 0.0)
        share_of[...] = share
        if tokens > block:
            row_of[...] = jnp.where(taken > 0, _running_sum(taken) - taken, -1.0)
            # Times zero, one token's NaN would reach all others.
            finite[...] = jnp.where(jnp.isfinite(x[...].astype(jnp.float32)), x[...], jnp.zeros_like(x[...]))

    def computed(rows: jax.Array) -> jax.Array:
        """What this tile of the expert makes of `[rows, hidden]`."""
        gate, up = (_dot(rows, into[0, which].astype(dtype), ((1,), (1,))) for which in (0, 1))
        if into_scale is not None:
            gate, up = gate * into_scale[0, 0:1, :], up * into_scale[0, 1:2, :]
        if into_bias is not None:
            gate, up = gate + into_bias[0, 0:1, :], up + into_bias[0, 1:2, :]
        inner, matrix = gated(gate, up), down[0].astype(dtype)
        if width % tile:  # the last tile reaches past the end, and what is there may be anything
            inner, matrix = (
                jnp.where(jax.lax.broadcasted_iota(jnp.int32, part.shape, 1) < width - step * tile, part, 0)
                for part in (inner, matrix)
            )
        y = _dot(inner.astype(dtype), matrix, ((1,), (1,)))
        if down_scale is not None:
            y = y * down_scale[0]
        return y if down_bias is None else y + jnp.where(step == 0, down_bias[0], 0.0)

    def weighed(chosen: jax.Array) -> jax.Array:
        """The share of each row's token, `[rows, 1]`; `chosen` `[rows, T]` says which that is."""
        return jnp.sum(jnp.where(chosen, share_of[pl.ds(expert, 1), :], 0.0), axis=1, keepdims=True)

    def token_is(first: jax.Array | int, rows: int) -> jax.Array:
        return jax.lax.broadcasted_iota(jnp.int32, (rows, tokens), 0) + first

    if tokens <= block:

        @pl.when(rows > 0)
        def multiply_all() -> None:
            share = weighed(token_is(0, tokens) == jax.lax.broadcasted_iota(jnp.int32, (tokens, tokens), 1))
            total[...] += jnp.where(share != 0, computed(x[...]) * share, 0)
    else:

        def run(number: jax.Array, _: None) -> None:
            first = pl.multiple_of(number * block, block)
            at = pl.ds(first, block)

            def chosen() -> jax.Array:
                return row_of[pl.ds(expert, 1), :] == token_is(first, block).astype(jnp.float32)

            @pl.when(step == 0)
            def gather() -> None:
                gathered[at, :] = _dot(chosen().astype(dtype), finite[...], ((1,), (0,))).astype(dtype)
                sums[at, :] = jnp.zeros((block, sums.shape[1]), jnp.float32)

            sums[at, :] += computed(gathered[at, :])

            @pl.when(step == steps - 1)
            def add() -> None:
                found = sums[at, :] * weighed(chosen())
                found = jnp.where(jnp.isfinite(found), found, 0).astype(dtype)
                total[...] += _dot(chosen().astype(dtype), found, ((0,), (0,)))

        jax.lax.fori_loop(0, pl.cdiv(rows, block), run, None)

    @pl.when((turn == turns - 1) & (step == steps - 1))
    def end() -> None:
        out[0] = total[...].astype(out.dtype)


def _running_sum(x: jax.Array) -> jax.Array:
    """Sums along the lanes, each including its own."""
    lane, distance = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1), 1
    while distance < x.shape[1]:
        x = x + jnp.where(lane >= distance, pltpu.roll(x, distance, 1), 0.0)
        distance *= 2
    return x


def _dot(a: jax.Array, b: jax.Array, over: tuple[tuple[int, ...], tuple[int, ...]]) -> jax.Array:
    exact = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jax.lax.dot_general(a, b, (over, ((), ())), preferred_element_type=jnp.float32, precision=exact)
