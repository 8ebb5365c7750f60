"""Mixture of experts: a router picks a few feed-forward networks for each token, and only those are read and computed.

Experts are split over the mesh, whole or by their width. Every device has all tokens, computes those that its own
experts were picked for, and the devices' results are added up, so that no token is sent anywhere and none is dropped,
however uneven the load.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from apps.arrays.collectives import AXIS
from apps.arrays.quantization import filled, product, values
from apps.llm.engine import kernels
from apps.llm.engine.model.experts.weights import Activation, ExpertWeights
from apps.llm.engine.model.layers import Experts
from apps.llm.engine.model.products import add_up

MIN_BLOCK, MAX_BLOCK = 8, 128
"""Tokens of one product: a TPU's vector registers hold 8 rows, its matrix unit takes 128."""


def route(logits: jax.Array, experts: Experts) -> tuple[jax.Array, jax.Array]:
    """The experts of each token and their shares: `[T, experts]` float32 -> both `[T, per_token]`."""
    shares, picked = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), experts.per_token)
    if experts.renormalized:
        shares = shares / jnp.sum(shares, axis=-1, keepdims=True)
    return shares, picked


def feed_forward(
    x: jax.Array,
    shares: jax.Array,
    picked: jax.Array,
    weights: ExpertWeights,
    activation: Activation,
    experts: Experts,
    mesh: Mesh,
    by_token: bool,
) -> jax.Array:
    """The sum of each token's experts, `[T, hidden]`, split as `add_up` says.

    Args:
        x: `[T, hidden]`, replicated.
        picked: `[T, per_token]`; a token with the number of experts there has none and gives zeros.
    """
    parts = values(weights.down).shape[0] // (experts.count * x.shape[1])
    own = experts.count * parts // mesh.size

    def computed(x: jax.Array, shares: jax.Array, picked: jax.Array, weights: ExpertWeights) -> jax.Array:
        device = jax.lax.axis_index(AXIS)
        mine = picked - device // parts * own
        mine = jnp.where((mine >= 0) & (mine < own), mine, own)  # `own`: another device's
        if parts > 1 and weights.down_bias is not None:  # once for all parts of a width
            weights = weights._replace(down_bias=jnp.where(device % parts == 0, weights.down_bias, 0.0))
        return add_up(on_device(x, shares, mine, weights, activation, experts), mesh, by_token)

    on_device = kernels.experts(mesh, x.shape[1], experts.width // parts) or _blocks
    if mesh.size == 1:
        return on_device(x, shares, picked, weights, activation, experts)
    return jax.shard_map(
        computed,
        mesh=mesh,
        in_specs=(P(), P(), P(), P(AXIS)),
        out_specs=P(AXIS if by_token else None),
        check_vma=False,
    )(x, shares, picked, weights)


def block_of(tokens: int, experts: Experts) -> int:
    """Tokens of one product in a step of `tokens` tokens: about twice what an expert gets on average."""
    average = tokens * experts.per_token // experts.count
    return min(max(MIN_BLOCK, 1 << average.bit_length()), MAX_BLOCK)


def _blocks(
    x: jax.Array,
    shares: jax.Array,
    picked: jax.Array,
    weights: ExpertWeights,
    activation: Activation,
    experts: Experts,
) -> jax.Array:
    """`feed_forward` on one device, for those of the experts that it has.

    Tokens are sorted by expert. A loop takes blocks of tokens of one expert and slices that expert's weights, so that
    it reads an expert once for each block, and experts without tokens never.
    """
    count = values(weights.down).shape[0] // x.shape[1]
    tokens, per_token = picked.shape
    pairs, block = tokens * per_token, block_of(tokens, experts)
    expert_of = picked.reshape(-1)
    order = jnp.argsort(expert_of, stable=True)
    tokens_of = jnp.zeros(count + 1, jnp.int32).at[expert_of].add(1)[:count]
    starts = jnp.cumsum(tokens_of) - tokens_of
    blocks = -(-tokens_of // block)
    last_blocks = jnp.cumsum(blocks)
    # All that a pass of the loop looks up is worked out before it: on a TPU each small step of a loop takes 2 us.
    number = jnp.arange(min(count, pairs) + pairs // block)  # as many blocks as there can be
    expert = jnp.sum(last_blocks[:, None] <= number, axis=0)
    begun = (number - (last_blocks - blocks).at[expert].get(mode="clip")) * block
    visits = jnp.stack([expert, starts.at[expert].get(mode="clip") + begun], axis=1)
    # Blocks of the last expert may reach past the end.
    taken = jnp.concatenate([x[order // per_token], jnp.zeros((block, x.shape[1]), x.dtype)])

    def run(number: jax.Array, results: jax.Array) -> jax.Array:
        expert, first = visits[number]
        rows = jax.lax.dynamic_slice_in_dim(taken, first, block)
        into, down, into_bias, down_bias = _of_expert(weights, expert, count)
        gate, up = jnp.split(product(filled(rows, into), into, into_bias), 2, axis=-1)
        y = product(filled(activation(gate, up), down).astype(x.dtype), down, down_bias)
        # A block that ends beyond its expert's tokens writes into the next expert's, whose own blocks come later.
        return jax.lax.dynamic_update_slice_in_dim(results, y.astype(x.dtype), first, 0)

    results = jnp.zeros((pairs + block, x.shape[1]), x.dtype)
    with jax.named_scope("experts"):  # the plan finds the loop by it
        results = jax.lax.fori_loop(0, last_blocks[-1], run, results)
    places = jnp.zeros(pairs, jnp.int32).at[order].set(jnp.arange(pairs, dtype=jnp.int32))
    shares = jnp.where(picked < count, shares, 0.0)
    found = results[places].reshape(tokens, per_token, -1)
    # A pair of no expert of this device has zeros there, or what a block made of the same token: it counts nothing.
    return jnp.sum(found * shares[:, :, None], axis=1).astype(x.dtype)


def _of_expert(weights: ExpertWeights, expert: jax.Array, count: int) -> ExpertWeights:
    """One expert's rows.

    Sliced along an axis of its own: the TPU compiler would give up the tiles of an int8 weight to slice any rows of it.
    """
    return jax.tree.map(lambda array: array.reshape(count, -1, *array.shape[1:])[expert], weights)
