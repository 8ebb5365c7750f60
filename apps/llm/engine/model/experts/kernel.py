"""The experts of one device as one Pallas kernel for TPU.

XLA's loop over experts (`mixture._blocks`) waits for each expert's weights, and sorting tokens outside it takes longer
than the products. Here the weights of the experts that some token picks pass through VMEM once, a tile of their width
at a time, the next while one is multiplied; int8 becomes the activations' type there. jax's own grouped products
(`megablox`, `ragged_dot`) have no int8, and transpose the weights.

Few tokens are all multiplied by each expert, those that did not pick it for nothing: up to 64 rows take the matrix unit
no longer than loading the weights into it. Of more, an expert's tokens are gathered, and added to the results, by
products with a matrix of zeros and ones.

Here is the call: what is where, and which expert's weights each step of the grid has. `kernel_body` has the step.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from apps.arrays.quantization import LANES, QuantArray, Weight, filled, values
from apps.llm.engine.model.experts.kernel_body import kernel
from apps.llm.engine.model.experts.weights import Activation, ExpertWeights
from apps.llm.engine.model.layers import Experts

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


def block_of(tokens: int, experts: Experts) -> int:
    """Rows of one product in a step of `tokens` tokens: about twice what an expert gets on average, or all tokens."""
    if tokens <= FEW_TOKENS:
        return tokens
    average = tokens * experts.per_token // experts.count
    return min(max(16, 1 << average.bit_length()), FEW_TOKENS)


def feed_forward(
    x: jax.Array,
    shares: jax.Array,
    picked: jax.Array,
    weights: ExpertWeights,
    activation: Activation,
    experts: Experts,
    tile: int | None = None,
    chip: Chip | None = None,
    interpret: Any = False,
) -> jax.Array:
    """`mixture.feed_forward` on one device.

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
        more = weights, activation, experts, tile, chip, interpret
        return jnp.concatenate([feed_forward(x[part], shares[part], picked[part], *more) for part in parts])
    padding = -tokens % LANES if tokens > block else 0
    if padding:  # the rolls below take whole registers
        x, shares, picked = (
            jnp.pad(each, ((0, padding), (0, 0)), constant_values=fill)
            for each, fill in ((x, 0), (shares, 0), (picked, -1))
        )
    y = _call(x, shares, picked, weights, activation, block, tile, chip.cores, interpret)
    return y[:tokens] if padding else y


def _token_itemsize(dtype: jnp.dtype) -> int:
    """Bytes that a step keeps for each channel of a token: x and the result twice, x twice more, two float32 sums."""
    return 6 * jnp.dtype(dtype).itemsize + 8


def _call(
    x: jax.Array,
    shares: jax.Array,
    picked: jax.Array,
    weights: ExpertWeights,
    activation: Activation,
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

    def expert(core: jax.Array, visit: jax.Array, ids: Any, used: Any) -> jax.Array:
        # Past the last one its number repeats, so that nothing is read. Without any, one is read and not used.
        number = core * pl.cdiv(used[0], cores) + visit
        return jnp.minimum(ids[jnp.maximum(jnp.minimum(number, used[0] - 1), 0)], count - 1)

    def spec(shape: tuple[int, ...], tiled: int | None) -> pl.BlockSpec:
        """A block of the current expert; axis `tiled` of it follows the tiles."""

        def at_visit(
            core: jax.Array, visit: jax.Array, step: jax.Array, ids: Any, _: Any, used: Any
        ) -> tuple[Any, ...]:
            last = core * pl.cdiv(used[0], cores) + visit >= used[0]
            at = jnp.where(last, tiles - 1, step)
            return expert(core, visit, ids, used), *(at if axis == tiled else 0 for axis in range(1, len(shape)))

        return pl.BlockSpec(shape, at_visit)

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
        partial(kernel, expert_at=expert, activation=activation, block=block, width=width, tile=tile),
        out_shape=jax.ShapeDtypeStruct((cores, tokens, hidden), x.dtype if cores == 1 else jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            in_specs=[block if array is not None else None for array, block in given],
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
