"""The decoder's parameters, declared once: shape, logical axes, initialiser and source in a checkpoint.

Abstract shapes, shardings, random weights and loading all follow from `declare`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from apps.arrays.model_folder import CheckpointError
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.heads import HeadLayout as HeadLayout
from apps.llm.engine.model.quantization import QuantArray, Weight, quantize, quantize_rows, whole_lanes
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.expert_rows import ExpertRows
from apps.llm.engine.weights.reading import Index, Reading, read_ahead
from apps.llm.engine.weights.source import Rows, Source, clipped, joined
from apps.serving.numbers.finite import all_finite
from apps.serving.progress import bar

Params = dict[str, Any]

MESH_AXES = {"vocab": "tensor", "kv_heads": "tensor", "mlp": "tensor", "experts": "tensor", "embed": None}
"""Logical axis -> mesh axis."""


@dataclass(frozen=True)
class Param:
    """One parameter; `axes` holds each axis's logical name (None: never split)."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    source: Source
    matrix: bool = False  # `[out, in]`; int8 quantization applies to it
    constant: float | None = None  # value of its random weights; None: normal noise
    wide: bool = False  # kept in float32 whatever the model's type, because it is only used in float32

    def dtype(self, model: jnp.dtype) -> jnp.dtype:
        """The type it is kept in, before any quantization."""
        return jnp.dtype(jnp.float32) if self.wide else model

    def read_dtype(self, model: jnp.dtype, int8: bool, checkpoint: Checkpoint) -> jnp.dtype:
        """The type that its values have before any quantization, so that all ways to load it give the same.

        Those of a quantized checkpoint are not rounded to the model's type on their way to int8.
        """
        wide = int8 and self.matrix and checkpoint.format is not None
        return jnp.dtype(jnp.float32) if wide else model

    def spec(self, mesh: Mesh) -> PartitionSpec:
        """How it is split over the mesh. An axis that does not divide is replicated."""
        names = (MESH_AXES.get(axis) if axis else None for axis in self.axes)
        return PartitionSpec(
            *(name if name and size % mesh.shape[name] == 0 else None for name, size in zip(names, self.shape))
        )

    def read(self, checkpoint: Checkpoint, index: tuple[slice, ...]) -> np.ndarray:
        """Read one shard, given as slices of the declared shape."""
        first, last, _ = index[0].indices(self.shape[0])
        rows = list(clipped(self.source, first, last))
        # A head's rows are few: those of a tensor are read at once, whatever the order that the parameter has them in.
        runs = [(run, checkpoint.read(run.tensor, run.shape, slice(run.start, run.stop))) for run in joined(rows)]
        parts = []
        for part in rows:
            run, values = next(found for found in runs if found[0].tensor == part.tensor and found[0].stop >= part.stop)
            parts.append(values[part.start - run.start : part.stop - run.start][..., slice(*(part.columns or (None,)))])
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self.filled(whole)[(slice(None), *index[1:])]

    def check(self, checkpoint: Checkpoint, values: np.ndarray, dtype: jnp.dtype) -> None:
        """Check what was read of a checkpoint, or the scales that int8 quantization makes of it.

        Args:
            dtype: that it was read in: what is too large for that is infinite.

        Raises:
            CheckpointError: a number is not finite; names the tensor.
        """
        if all_finite(values):
            return
        names = list(dict.fromkeys(part.tensor for part in self.source))
        bad = [name for name in names if not _finite_in(checkpoint, name, self, dtype)]
        raise CheckpointError(
            f"{checkpoint.location}: tensor {' or '.join((bad or names)[:3])} has numbers that are not finite (NaN or "
            f"infinity, or too large for the type that they are kept in): the file is damaged, or its training failed"
        )

    def filled(self, rows: np.ndarray) -> np.ndarray:
        """Whole rows of the source, with zeros after them where the parameter's are longer."""
        more = self.shape[-1] - rows.shape[-1] if rows.ndim == 2 else 0
        return np.pad(rows, ((0, 0), (0, more))) if more else rows


def declare(arch: Architecture, heads: HeadLayout) -> Params:
    """All parameters as a tree of Param. The only place with a checkpoint's tensor names."""
    hidden, extra = arch.hidden_size, arch.per_layer_width

    def vector(name: str, size: int = hidden) -> Param:
        bias = name.endswith("bias")
        fill = 0.0 if arch.norm_plus_one or bias else 1.0
        wide = bias or arch.norm_plus_one or arch.wide_norm or arch.norm == "layer"  # see Decoder._norm
        return Param((size,), (None,), _plain(name, size), constant=fill, wide=wide)

    def norm(key: str, name: str) -> Params:
        """One of the residual stream's norms: its weight under `key`, and a LayerNorm's bias."""
        bias = {f"{key}_bias": vector(f"{name}.bias")} if arch.norm == "layer" else {}
        return {key: vector(f"{name}.weight")} | bias

    def experts(prefix: str) -> Params:
        assert arch.experts is not None
        count, width, parts = arch.experts.count, arch.experts.width, heads.expert_parts
        feed, router = f"{prefix}.mlp", "gate"
        if arch.experts.names == "mixtral":
            feed = f"{prefix}.block_sparse_moe"
        elif arch.experts.names == "gpt_oss":
            router = "router"
        elif arch.experts.names == "gemma4":
            feed, router = prefix, "router.proj"
        source = ExpertRows(arch.experts, feed, hidden, heads.devices, parts)
        up, down = (2 * count * width, whole_lanes(hidden)), (count * parts * hidden, whole_lanes(width // parts))
        params = {
            "router": Param((count, hidden), (None, "embed"), _plain(f"{feed}.{router}.weight", count, hidden)),
            "experts_in": Param(up, ("experts", "embed"), source.into("weight", hidden), matrix=True),
            "experts_out": Param(down, ("experts", None), source.down("weight", width), matrix=True),
        }
        if arch.experts.biases:
            params["router_bias"] = vector(f"{feed}.{router}.bias", count)
            params["experts_in_bias"] = Param(up[:1], ("experts",), source.into("bias"), constant=0.0, wide=True)
            params["experts_out_bias"] = Param(down[:1], ("experts",), source.down("bias"), constant=0.0, wide=True)
        if arch.experts.beside:
            params["router_scale"] = vector(f"{prefix}.router.scale")
            params["expert_scales"] = vector(f"{prefix}.router.per_expert_scale", count)
            params |= norm("dense_norm", f"{prefix}.post_feedforward_layernorm_1")
            params |= norm("experts_norm", f"{prefix}.pre_feedforward_layernorm_2")
            params |= norm("post_experts_norm", f"{prefix}.post_feedforward_layernorm_2")
        if arch.experts.shared_width:
            params |= feed_forward(f"{feed}.shared_expert", arch.experts.shared_width)
            gate = _plain(f"{feed}.shared_expert_gate.weight", 1, hidden)
            params["shared_gate"] = Param((1, hidden), (None, "embed"), gate)
        return params

    def feed_forward(feed: str, mlp: int = arch.intermediate_size) -> Params:
        down = Param((hidden, mlp), ("embed", "mlp"), _plain(f"{feed}.down_proj.weight", hidden, mlp), matrix=True)
        if arch.gated_mlp:
            key, rows = "gate_up", 2 * mlp
            into, bias = _gate_up(arch, feed, "weight", heads, mlp, hidden), _gate_up(arch, feed, "bias", heads, mlp)
        else:
            key, rows = "up", mlp
            into, bias = _plain(f"{feed}.up_proj.weight", mlp, hidden), _plain(f"{feed}.up_proj.bias", mlp)
        params = {key: Param((rows, hidden), ("mlp", "embed"), into, matrix=True), "down": down}
        if arch.mlp_bias:
            params[f"{key}_bias"] = Param((rows,), ("mlp",), bias, constant=0.0, wide=True)
            params["down_bias"] = vector(f"{feed}.down_proj.bias")
        return params

    def layer(i: int) -> Params:
        prefix = f"model.layers.{i}"
        attention, own, layout = f"{prefix}.self_attn", arch.of_layer(i), heads.of_layer(arch, i)
        dim, queries = own.head_dim, layout.kv_heads * layout.group
        qkv = layout.kv_heads * (layout.group + own.kv_projections) * dim
        params = {
            **norm("attention_norm", f"{prefix}.input_layernorm"),
            "qkv": Param(
                (qkv, hidden),
                ("kv_heads", "embed"),
                _fused_qkv(own, attention, "weight", layout, hidden),
                matrix=True,
            ),
            "out": Param(
                (hidden, queries * dim),
                ("embed", "kv_heads"),
                _plain(f"{attention}.o_proj.weight", hidden, queries * dim),
                matrix=True,
            ),
            **(experts(prefix) if arch.has_experts(i) else {}),
            **(feed_forward(f"{prefix}.mlp", own.intermediate_size) if arch.has_mlp(i) else {}),
        }
        if arch.post_norms:
            params |= norm("post_attention_norm", f"{prefix}.post_attention_layernorm")
            params |= norm("mlp_norm", f"{prefix}.pre_feedforward_layernorm")
            params |= norm("post_mlp_norm", f"{prefix}.post_feedforward_layernorm")
        else:
            params |= norm("mlp_norm", f"{prefix}.post_attention_layernorm")
        if arch.sinks:
            places = _plain(f"{attention}.sinks", queries)
            params["sinks"] = Param((queries,), ("kv_heads",), places, constant=0.0, wide=True)
        if arch.qk_norm:
            params["q_norm"] = vector(f"{attention}.q_norm.weight", dim)
        if arch.qk_norm and own.kv_projections:
            params["k_norm"] = vector(f"{attention}.k_norm.weight", dim)
        if arch.attention_bias:
            params["qkv_bias"] = Param(
                (qkv,),
                ("kv_heads",),
                _fused_qkv(own, attention, "bias", layout),
                constant=0.0,
                wide=True,
            )
        if arch.output_bias:
            params["out_bias"] = vector(f"{attention}.o_proj.bias")
        if arch.per_layer_width:
            for key, name, *size in (
                ("extra_in", "input_gate", extra, hidden),
                ("extra_out", "projection", hidden, extra),
            ):
                source = _plain(f"{prefix}.per_layer_{name}.weight", *size)
                params[key] = Param(tuple(size), (None, None), source, matrix=True)
            params |= norm("extra_norm", f"{prefix}.post_per_layer_input_norm")
        if arch.layer_scalars:
            params["scalar"] = Param((1,), (None,), _plain(f"{prefix}.layer_scalar", 1), constant=1.0)
        return params

    table = (arch.vocab_size, hidden)
    tree: Params = {
        # A table used only for lookups, not in a product, gains nothing from int8.
        "embed": Param(
            table, ("vocab", "embed"), _plain("model.embed_tokens.weight", *table), matrix=arch.tied_embeddings
        ),
        "layers": [layer(i) for i in range(arch.num_layers)],
        **norm("final_norm", "model.norm"),
    }
    if extra:
        width = arch.num_layers * extra
        rows, into = (arch.vocab_size, width), (width, hidden)
        source = _plain("model.embed_tokens_per_layer.weight", *rows)
        tree["extra_embed"] = Param(rows, ("vocab", None), source)
        source = _plain("model.per_layer_model_projection.weight", *into)
        tree["extra_projection"] = Param(into, (None, "embed"), source, matrix=True)
        tree["extra_projection_norm"] = vector("model.per_layer_projection_norm.weight", extra)
    if not arch.tied_embeddings:
        tree["lm_head"] = Param(table, ("vocab", "embed"), _plain("lm_head.weight", *table), matrix=True)
    if arch.head_bias:
        size = arch.vocab_size
        tree["lm_head_bias"] = Param((size,), ("vocab",), _plain("lm_head.bias", size), constant=0.0, wide=True)
    return tree


def _finite_in(checkpoint: Checkpoint, name: str, param: Param, dtype: jnp.dtype) -> bool:
    """Whether a tensor of the checkpoint has only finite numbers in a type."""
    parts = [part for part in param.source if part.tensor == name]
    with np.errstate(over="ignore", invalid="ignore"):
        return all(
            all_finite(checkpoint.read(name, part.shape, slice(part.start, part.stop)).astype(dtype))
            for part in joined(parts)
        )


def _plain(name: str, *shape: int) -> Source:
    """A whole tensor, in file order."""
    return (Rows(name, shape, 0, shape[0]),)


def _gate_up(arch: Architecture, feed: str, kind: str, heads: HeadLayout, *shape: int) -> Source:
    """The two projections into the MLP as one matrix: each device's gate rows, then its up rows."""
    share, (mlp, *inputs) = shape[0] // heads.devices, shape
    names, height = (f"{feed}.gate_proj.{kind}", f"{feed}.up_proj.{kind}"), mlp
    if arch.fused:
        names, height = (f"{feed}.gate_up_proj.{kind}",) * 2, 2 * mlp
    starts = (0, mlp if arch.fused else 0)
    return tuple(
        Rows(name, (height, *inputs), start + device * share, start + (device + 1) * share)
        for device in range(heads.devices)
        for name, start in zip(names, starts)
    )


def _fused_qkv(arch: Architecture, attention: str, kind: str, heads: HeadLayout, *inputs: int) -> Source:
    """q, k and v, as far as there are, as one matrix: each key/value head after the query heads that use it."""
    dim, queries, keys = arch.head_dim, arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    heights, starts = (queries, keys, keys), (0, 0, 0)
    names = [f"{attention}.{name}_proj.{kind}" for name in "qkv"]
    if arch.fused:
        heights, starts = (queries + 2 * keys,) * 3, (0, queries, queries + keys)
        names = [f"{attention}.qkv_proj.{kind}"] * 3

    def part(which: int, head: int, count: int) -> Rows:
        first = starts[which] + head * dim
        return Rows(names[which], (heights[which], *inputs), first, first + count * dim)

    parts = []
    for kv_head in range(heads.kv_heads):
        source = kv_head // heads.repeat
        parts.append(part(0, kv_head * heads.group, heads.group))
        parts += [part(which, source, 1) for which in range(1, 1 + arch.kv_projections)]
    return tuple(parts)


def abstract(tree: Any, mesh: Mesh, dtype: jnp.dtype, int8: bool) -> Any:
    """Shapes, types and shardings without data, of a tree or of one parameter."""
    return _map(partial(_abstract, mesh=mesh, dtype=dtype, int8=int8), tree)


def _abstract(param: Param, mesh: Mesh, dtype: jnp.dtype, int8: bool) -> jax.ShapeDtypeStruct | QuantArray:
    spec = param.spec(mesh)
    if int8 and param.matrix:
        return QuantArray(
            jax.ShapeDtypeStruct(param.shape, jnp.int8, sharding=NamedSharding(mesh, spec)),
            jax.ShapeDtypeStruct(param.shape[:1], jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(spec[0]))),
        )
    return jax.ShapeDtypeStruct(param.shape, param.dtype(dtype), sharding=NamedSharding(mesh, spec))


def load(tree: Params, checkpoint: Checkpoint, mesh: Mesh, dtype: jnp.dtype, int8: bool) -> Params:
    """Read every parameter onto its devices; int8 weights are quantized on the host, as they are read."""

    def reading(name: str, param: Param) -> Reading:
        form = abstract(param, mesh, dtype, int8)

        def read(index: Index) -> Sequence[np.ndarray]:
            # First to the type that a prepared checkpoint's values have had.
            with np.errstate(over="ignore", invalid="ignore"):  # `check` says it better
                read_as = param.read_dtype(dtype, int8, checkpoint)
                rows = param.read(checkpoint, index).astype(read_as, copy=False)
                int8_rows = isinstance(form, QuantArray)
                read = quantize_rows(rows) if int8_rows else (rows.astype(form.dtype, copy=False),)
            param.check(checkpoint, read[-1], read_as)  # a row's scale is that of its largest number
            return read

        return Reading(form, read, whole_rows=True, exchange=True)

    weights = loaded(tree, reading, checkpoint.is_local)
    checkpoint.forget_parts()
    return weights


def loaded(tree: Params, reading: Callable[[str, Param], Reading], local: bool) -> Params:
    """The tree with each parameter, which is given by name, on its devices. For `local` see `read_ahead`."""
    params = named(tree)
    weights = []
    with bar("reading weights", len(params)) as advance:
        for ready in read_ahead((reading(name, param) for name, param in params.items()), local):
            weights.append(ready.placed())
            advance()
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=is_param), weights)


def random(tree: Params, mesh: Mesh, dtype: jnp.dtype, int8: bool, seed: int = 0) -> Params:
    """Random weights of a sane scale. Each device on every host draws only its own shards.

    The values depend only on the seed and on the parameter's place and shape, not on the number of devices: JAX's
    partitionable threefry counts elements, wherever they are.
    """
    places = iter(range(_count(tree)))

    def draw(param: Param) -> Weight:
        form = _abstract(param, mesh, dtype, int8)
        # Numbers, not a key: an array on one process's devices cannot be an input on a mesh of several processes.
        weight = _drawing(form, param.constant)(np.uint32(seed), np.uint32(next(places)))
        return jax.block_until_ready(weight)  # see `Reading.placed`

    return _map(draw, tree)


@cache
def _drawing(form: jax.ShapeDtypeStruct | QuantArray, constant: float | None) -> Callable[[int, int], Weight]:
    """A program that draws a parameter of this form. The parameter's place is an input, so all layers share it."""
    values = jax.tree.leaves(form)[0]

    def draw(seed: jax.Array, place: jax.Array) -> Weight:
        if constant is not None:
            return jnp.full(values.shape, constant, values.dtype)
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(seed), place), values.shape, jnp.float32) * 0.02
        return quantize(noise) if isinstance(form, QuantArray) else noise.astype(values.dtype)

    return jax.jit(draw, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, form))


def nbytes(params: Params) -> int:
    """Bytes of all parameters over all devices."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def named(tree: Params) -> dict[str, Param]:
    """A declared tree's parameters by name, such as `layers.0.qkv`, in the tree's order."""
    paths = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_param)
    return {jax.tree_util.keystr(path, simple=True, separator="."): param for path, param in paths}


def is_param(leaf: Any) -> bool:
    """For `jax.tree`: what counts as a leaf of a declared tree."""
    return isinstance(leaf, Param)


def _map(function: Callable[[Param], Any], tree: Any) -> Any:
    return jax.tree.map(function, tree, is_leaf=is_param)


def _count(tree: Params) -> int:
    return len(jax.tree.leaves(tree, is_leaf=is_param))
