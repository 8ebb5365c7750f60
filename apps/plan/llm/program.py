"""The engine's own step programs, lowered from abstract arrays and compiled for a mesh of devices that need not exist.

A decoder's layers are alike, so a program of few layers and one of a few more say what each further layer adds:
memory, bytes and cycles of the whole are extrapolated from the two. Only the layer count changes; widths, vocabulary,
batch, cache and sharding are the config's own.
"""

import math
import time
from collections import defaultdict
from dataclasses import dataclass, fields, replace

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.llm.api import MAX_BIAS
from apps.llm.engine.attention import choice
from apps.llm.engine.attention.spec import KVScales, LayerCache
from apps.llm.engine.executor import compiled_step
from apps.llm.engine.model import params
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.decoder import Decoder
from apps.llm.engine.model.params import HeadLayout
from apps.llm.engine.sampling import Extras, SamplingState
from apps.llm.engine.step import StepShape
from apps.plan import hlo, traffic
from ray_configs.llm import EngineConfig

FEW_LAYERS = (2, 4)
"""Compiled for extrapolation; even, for models whose windows alternate from layer to layer."""


@dataclass(frozen=True)
class Measured:
    """What the compiler says of a program, on each device. Bytes unless said otherwise.

    Linear in the number of layers, but for `seconds`.
    """

    weights: float
    lookup: float
    """Of the weights, a table that is only looked up in: a step reads a few rows of it."""
    kv_cache: float
    """All pages, as they lie in memory."""
    other_arguments: float
    """Sampling state, KV scales, the step's own inputs."""
    aliased: float
    temporaries: float
    code: float
    peak: float
    flops: float
    bytes_accessed: float
    """The compiler's own count; see `traffic` for why it is not what crosses HBM."""
    hbm_read: float
    hbm_written: float
    hbm_everything: float
    """HBM traffic when requests ask for sampling, penalties and log probabilities."""
    cycles: float
    cycles_everything: float
    ici_sent: float
    kernels: float
    """Number of Pallas calls."""
    seconds: float
    """That compiling took."""


@dataclass(frozen=True)
class Programs:
    """Step programs of one engine config on one mesh."""

    config: EngineConfig
    arch: Architecture
    mesh: Mesh
    pages: int

    @property
    def decoder(self) -> Decoder:
        return self._decoder(self.arch)

    def _decoder(self, arch: Architecture) -> Decoder:
        size, page = self.mesh.shape["tensor"], self.config.page_size
        heads = HeadLayout.of(arch, size)
        impl = choice.implementation(self.config.attention, self.mesh, arch.head_dim, page)
        return Decoder(arch, heads, page, jnp.dtype(self.config.dtype), impl, self.mesh)

    @property
    def kv_dtype(self) -> jnp.dtype:
        return jnp.dtype(jnp.int8 if self.config.quantize_kv_cache == "int8" else self.config.dtype)

    def with_layers(self, layers: int) -> "Programs":
        arch = replace(self.arch, num_layers=layers, windows=self.arch.windows[:layers])
        return replace(self, arch=arch)

    def layer_cache(self) -> LayerCache:
        """Shapes of one layer's KV cache, of all devices together."""
        return self.decoder.impl.cache(self.decoder.attention_spec(0), self.pages, self.kv_dtype)

    def page_bytes(self) -> float:
        """Of a page of all layers, on each device; layouts may pad it."""
        layer = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.layer_cache()))
        return layer * self.arch.num_layers / self.pages / self.mesh.size

    def weight_bytes(self) -> int:
        """On each device; layouts may pad them."""
        int8 = self.config.quantize_weights == "int8"
        tree = params.abstract(params.declare(self.arch, self.decoder.heads), self.mesh, self.decoder.dtype, int8)
        return sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)
        )

    def arguments(self, shape: StepShape) -> tuple:
        """Shapes, types and shardings of everything that a step is called with."""
        decoder, rows = self.decoder, self.config.max_batch_size + 1

        def abstract(shape: tuple[int, ...], dtype: jnp.dtype, spec: P = P()) -> jax.ShapeDtypeStruct:  # noqa: B008
            return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, spec))

        layer = jax.tree.map(  # a partition may stand for all arrays below it
            lambda spec, parts: jax.tree.map(lambda part: abstract(part.shape, part.dtype, spec), parts),
            decoder.impl.partition(),
            self.layer_cache(),
        )
        scale = abstract((decoder.heads.kv_heads, self.arch.head_dim), jnp.float32, P("tensor", None))
        int8_kv, int8_weights = self.kv_dtype == jnp.int8, self.config.quantize_weights == "int8"
        vocab, layers = self.arch.vocab_size, self.arch.num_layers
        return (
            params.abstract(params.declare(self.arch, decoder.heads), self.mesh, decoder.dtype, int8_weights),
            [layer] * layers,
            SamplingState(abstract((rows,), jnp.int32), abstract((rows, vocab), jnp.int16)),
            [KVScales(scale, scale)] * layers if int8_kv else None,
            abstract((shape.size,), jnp.int32),
            Extras(
                abstract((shape.seqs, -(-vocab // 32)), jnp.uint32),
                abstract((shape.seqs, MAX_BIAS), jnp.int32),
                abstract((shape.seqs, MAX_BIAS), jnp.float32),
                abstract((2,), jnp.int32),
            ),
        )

    def compile(self, shape: StepShape) -> jax.stages.Compiled:
        """The step's program, as the engine would compile it on those devices."""
        return compiled_step(self.decoder).lower(*self.arguments(shape), shape).compile()

    def measure(self, shape: StepShape, whole: bool = False) -> Measured:
        """The whole model's program: compiled (`whole`, or a model of few layers), or extrapolated from two short ones.

        Raises:
            jax.errors.JaxRuntimeError: a program that is compiled whole does not fit the devices' memory.
        """
        few, more = FEW_LAYERS
        if whole or self.arch.num_layers <= more:
            return self._measure(shape)
        short, longer = self.with_layers(few)._measure(shape), self.with_layers(more)._measure(shape)
        return extrapolated(short, longer, few, more, self.arch.num_layers)

    def _measure(self, shape: StepShape) -> Measured:
        started = time.monotonic()
        compiled = self.compile(shape)
        return measured(compiled, time.monotonic() - started)


def extrapolated(short: Measured, longer: Measured, few: int, more: int, layers: int) -> Measured:
    """What a program of `layers` would be, from one of `few` layers and one of `more`."""
    values = {}
    for field in fields(Measured):
        a, b = getattr(short, field.name), getattr(longer, field.name)
        values[field.name] = a + b if field.name == "seconds" else max(b + (b - a) * (layers - more) / (more - few), 0)
    return Measured(**values)


def measured(compiled: jax.stages.Compiled, seconds: float = 0.0) -> Measured:
    """Everything that is read off a compiled step."""
    module = hlo.parse(compiled.as_text())
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    greedy, everything = traffic.count(module, 0), traffic.count(module, 1)
    sizes = argument_bytes(module)
    return Measured(
        weights=sizes["weights"],
        lookup=sizes["lookup"],
        kv_cache=sizes["caches"],
        other_arguments=memory.argument_size_in_bytes - sizes["weights"] - sizes["caches"],
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        peak=getattr(memory, "peak_memory_in_bytes", 0),
        flops=cost["flops"],
        bytes_accessed=cost["bytes accessed"],
        hbm_read=greedy.hbm_read,
        hbm_written=greedy.hbm_written,
        hbm_everything=everything.hbm,
        cycles=greedy.cycles,
        cycles_everything=everything.cycles,
        ici_sent=greedy.ici_sent,
        kernels=greedy.kernels,
        seconds=seconds,
    )


def argument_bytes(module: hlo.Module) -> dict[str, int]:
    """Bytes on each device of the step's arguments, by the argument's name, padding of layouts included.

    `lookup` is the embedding table, of the weights, where the logits come from another.
    """
    sizes: dict[str, int] = defaultdict(int)
    tied = True
    for parameter in module.entry.parameters.values():
        name = parameter.line.partition('op_name="')[2].partition('"')[0].replace("\\'", "'")
        size = sum(array.nbytes for array in parameter.arrays)
        sizes[name.partition("[")[0].partition(".")[0]] += size
        if name.startswith("weights['embed']"):
            sizes["lookup"] += size
        tied = tied and not name.startswith("weights['lm_head']")
    if tied:
        sizes["lookup"] = 0
    return sizes
