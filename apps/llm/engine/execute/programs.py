"""The programs of a language model on the devices of one DP rank: what each computes, and the list of them all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.arrays.programs import ProgramSpec, shardings, unlike, zeros
from apps.llm.api import MAX_BIAS
from apps.llm.engine import kernels
from apps.llm.engine.adapters import stack
from apps.llm.engine.adapters.stack import Adapted
from apps.llm.engine.attention.spec import cache_dtype
from apps.llm.engine.execute import host_memory, kept_states, readout, sampling
from apps.llm.engine.execute.sampling import SamplingState, TokenConstraints
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.executor_protocol import shapes_with_readout
from apps.llm.engine.images.encoding import EncodingSizes
from apps.llm.engine.model import params
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.decoder import Decoder
from apps.llm.engine.model.mixers.interface import Capacity, StateForm
from apps.llm.engine.model.param import Params
from ray_configs.llm import EngineConfig

CLEANED = 64
"""Pages that one call of the program fills with zeros."""


@dataclass(frozen=True)
class EnginePrograms:
    """The programs of one config and model on a mesh, whose devices need not exist.

    Args:
        config: of the DP rank.
        shapes: of the steps, smallest first.
        pages: of the KV cache, page 0 included.
        calibration: tokens of the text that the scales of an int8 cache are measured over; 0: they are not measured.
    """

    config: EngineConfig
    arch: Architecture
    mesh: Mesh
    shapes: tuple[StepShape, ...]
    pages: int = 0
    calibration: int = 0

    # -- what they work on --------------------------------------------------------------------------------------

    @cached_property
    def decoder(self) -> Decoder:
        config, arch = self.config, self.arch
        split = arch.split(self.mesh.shape["tensor"], config.expert_parallel)
        head_dims = {attention.head_dim for attention in arch.attention}
        sinks = any(attention.sinks for attention in arch.attention)
        impl = kernels.attention(config.attention, self.mesh, head_dims, config.page_size, sinks, self.kv_dtype)
        return Decoder(arch, split, config.page_size, jnp.dtype(config.dtype), impl, self.mesh)

    @property
    def kv_dtype(self) -> jnp.dtype:
        return cache_dtype(self.config)

    @cached_property
    def declared(self) -> Params:
        """The weights as `declare` describes them."""
        return declare(self.arch, self.decoder.split)

    @cached_property
    def weights(self) -> Params:
        """Shapes, types and shardings of the weights, and of the adapters' places beside them."""
        int8 = self.config.quantize_weights == "int8"
        tree = params.abstract(self.declared, self.mesh, self.decoder.dtype, int8)
        for layer, form in zip(tree["layers"], self.adapters):
            layer["adapters"] = form
        return tree

    def weight_bytes(self) -> int:
        """Bytes of the weights on each device; layouts may pad them."""
        return params.shard_bytes(self.weights)

    @cached_property
    def adapters(self) -> list[Adapted]:
        """The form of each layer's stack of adapters; none without places for them."""
        config, decoder = self.config, self.decoder
        if not config.adapter_capacity:
            return []
        sizes = config.adapter_capacity, config.max_adapter_rank
        return stack.abstract(self.arch, decoder.split, self.mesh, decoder.dtype, *sizes)

    @cached_property
    def states(self) -> list[StateForm | None]:
        """What each layer's mixer keeps between steps; None: nothing, or it reads another layer's."""
        return self._states(self.pages, self.kv_dtype)

    @cached_property
    def caches(self) -> list[Any]:
        """The arrays of `states`, with their shardings."""
        return self._placed(self.states)

    @property
    def calibration_shape(self) -> StepShape:
        return StepShape(self.calibration, 1, -(-self.calibration // self.config.page_size))

    @property
    def calibration_caches(self) -> list[Any]:
        """Those of the step that measures the scales, which are not quantized themselves."""
        return self._placed(self._states(self.calibration_shape.max_pages + 1, self.decoder.dtype))

    def _states(self, pages: int, dtype: jnp.dtype) -> list[StateForm | None]:
        room = Capacity(pages, self.config.page_size, self.slots, dtype)
        return [mixer.state(self.decoder.impl, room) for mixer in self.decoder.mixers]

    def _placed(self, states: Sequence[StateForm | None]) -> list[Any]:
        def split(partition: P, arrays: Any) -> Any:  # a partition may stand for all arrays below it
            sharding = NamedSharding(self.mesh, partition)
            return jax.tree.map(lambda form: jax.ShapeDtypeStruct(form.shape, form.dtype, sharding=sharding), arrays)

        return [state and jax.tree.map(split, state.partition, state.arrays) for state in states]

    def held_by(self, owner: Literal["pages", "slots"]) -> list[Any]:
        """Of `caches`, those whose arrays are split into pages, or into slots; None in the place of others."""
        return [
            arrays if state is not None and state.held_by == owner else None
            for state, arrays in zip(self.states, self.caches)
        ]

    def bytes_held_by(self, owner: Literal["pages", "slots"]) -> int:
        """Bytes of those, over all devices."""
        return sum(form.size * form.dtype.itemsize for form in jax.tree.leaves(self.held_by(owner)))

    @property
    def host_pages(self) -> int:
        """Pages for which the config gives the hosts' memory, besides those on the devices."""
        hosts = len({device.process_index for device in self.mesh.devices.flat})
        page_bytes = replace(self, pages=1).bytes_held_by("pages") / hosts
        return int(self.config.prefix_cache_host_gib * 2**30 // page_bytes) if page_bytes else 0

    @cached_property
    def encodings(self) -> EncodingSizes | None:
        """The calls that encode images; None: the model reads text alone."""
        return EncodingSizes.of(self.config, self.arch)

    @property
    def images(self) -> Any:
        """What keeps encoded images."""
        return self.encodings and self.encodings.kept(self.decoder.dtype, self.everywhere)

    @property
    def slots(self) -> int:
        """Of sequences, and one more for padding."""
        return self.config.max_batch_size + 1

    @property
    def state(self) -> SamplingState:
        return SamplingState(self._whole((self.slots,)), self._whole((self.slots, self.arch.vocab_size), jnp.int16))

    def _constraints(self, seqs: int) -> TokenConstraints:
        bias = (seqs, MAX_BIAS)
        words = self._whole((seqs, -(-self.arch.vocab_size // 32)), jnp.uint32)
        return TokenConstraints(words, self._whole(bias), self._whole(bias, jnp.float32), self._whole((2,)))

    @property
    def _scales(self) -> list[Any] | None:
        """Of an int8 cache, for each layer that has its own."""
        if self.kv_dtype != jnp.int8:
            return None
        where = NamedSharding(self.mesh, P("tensor", None))
        forms = [mixer.scales() for mixer in self.decoder.mixers]
        return jax.tree.map(lambda form: jax.ShapeDtypeStruct(form.shape, form.dtype, sharding=where), forms)

    def _whole(self, shape: tuple[int, ...], dtype: Any = jnp.int32) -> Any:
        """The form of an array that every device has the whole of."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.everywhere)

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, P())

    # -- the list -----------------------------------------------------------------------------------------------

    def listed(self) -> Iterator[ProgramSpec]:
        """Every program that requests need, and those that make the cache.

        Keys: `("step", tokens)`; `("scores", tokens)` and `("pooled", tokens)` of the steps that can be read out;
        `("start slot",)` and `("state",)`; `("cache", layer)`, `("clean", layer)` and `("adapter", layer)` of the first
        of the layers that are alike; those of `host_memory.copying` and of `kept_states.copying`, where there is what
        they copy; for an int8 cache `("calibrate",)` and `("calibration cache", layer)`; of a model that sees
        `("images",)`, which makes what keeps them, and `("encode", tokens)`.
        """
        yield from map(self._step, self.shapes)
        yield from self._readouts()
        yield from self._sampling_state()
        yield from self._empty("cache", self.caches)
        yield from self._cleaning()
        yield from self._adapter_writes()
        if self.host_pages:
            yield from host_memory.copying(self.held_by("pages"), self.host_pages, self.everywhere)
        if rows := self.config.prefix_states:
            yield from kept_states.copying(self.held_by("slots"), rows, self.everywhere)
        if self.calibration:
            yield from self._calibration()
        if self.encodings is not None:
            yield from self.encodings.listed(self.weights["tower"], self.images)

    def _step(self, shape: StepShape) -> ProgramSpec:
        given = self._whole((shape.size,)), self._constraints(shape.seqs), self.images
        arguments = self.weights, self.caches, self.state, self._scales, *given
        return ProgramSpec(("step", shape.tokens), partial(step, self.decoder, shape), arguments, donate=(1, 2))

    def _readouts(self) -> Iterator[ProgramSpec]:
        head = readout.head(self.weights)
        for shape in shapes_with_readout(self.shapes):
            hidden = self._whole((shape.tokens, self.arch.hidden_size), self.decoder.dtype)
            arguments = head, hidden, self._whole((shape.tokens,))
            scores, pooled = partial(readout.scores, self.decoder), partial(readout.pooled, self.decoder, shape.seqs)
            for name, function in (("scores", scores), ("pooled", pooled)):
                yield ProgramSpec((name, shape.tokens), function, arguments, out_shardings=self.everywhere)

    def _sampling_state(self) -> Iterator[ProgramSpec]:
        state, ids = self.state, self._whole((self.shapes[0].max_pages * self.config.page_size,))
        yield ProgramSpec(("state",), partial(zeros, state), (), out_shardings=self.everywhere)
        arguments = state, self._whole(()), ids, ids
        yield ProgramSpec(("start slot",), sampling.start_slot, arguments, donate=(0,), out_shardings=self.everywhere)

    def _empty(self, name: str, caches: list[Any]) -> Iterator[ProgramSpec]:
        for layer, form in unlike(caches):
            yield ProgramSpec((name, layer), partial(zeros, form), (), out_shardings=shardings(form))

    def _cleaning(self) -> Iterator[ProgramSpec]:
        for layer, form in unlike(self.held_by("pages")):
            arguments = form, self._whole((CLEANED,))
            yield ProgramSpec(("clean", layer), clean, arguments, donate=(0,), out_shardings=shardings(form))

    def _adapter_writes(self) -> Iterator[ProgramSpec]:
        for layer, form in unlike(self.adapters):
            arguments = form, stack.of_one(form), self._whole(())
            yield ProgramSpec(("adapter", layer), stack.written, arguments, donate=(0,), out_shardings=shardings(form))

    def _calibration(self) -> Iterator[ProgramSpec]:
        shape, caches = self.calibration_shape, self.calibration_caches
        yield from self._empty("calibration cache", caches)
        given, where = (self.weights, caches, self._whole((shape.size,))), NamedSharding(self.mesh, P("tensor", None))
        yield ProgramSpec(("calibrate",), partial(calibrate, self.decoder, shape), given, out_shardings=where)


def step(
    decoder: Decoder,
    shape: StepShape,
    weights: Params,
    caches: list[Any],
    state: SamplingState,
    kv_scales: list[Any] | None,
    packed: jax.Array,
    constraints: TokenConstraints,
    images: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, list[Any], SamplingState]:
    """One step: samples, the last layer's hidden states `[T, hidden]` (see `readout`), caches and state."""
    batch = shape.unpack(packed)
    first = batch.q_starts[:-1]
    tokens = batch.tokens.at[jnp.where(batch.decoding > 0, first, shape.tokens)].set(
        state.last_token[batch.rows], mode="drop"
    )
    hidden, caches = decoder.hidden(weights, batch, tokens, caches, kv_scales, images=images)
    last = hidden[jnp.maximum(batch.q_starts[1:] - 1, 0)]
    logits = decoder.logits(weights, last, batch.num_seqs)
    finite = None
    if kv_scales is not None:  # an int8 cache does not keep NaN: the last token need not see that of another
        bad = ~sampling.all_finite(hidden) & (jnp.arange(shape.tokens) < batch.q_starts[-1])
        of_seq = batch.sequence_of_token() == jnp.arange(shape.seqs)[:, None]
        finite = ~jnp.any(of_seq & bad, axis=1)
    samples, state = sampling.sample(logits, batch, state, constraints, decoder.mesh, finite)
    if decoder.mesh.size > 1:  # replicated: each host reads its own copy and feeds its own state back
        everywhere = NamedSharding(decoder.mesh, P())
        hidden, state = jax.lax.with_sharding_constraint((hidden, state), everywhere)
    return samples, hidden, caches, state


def clean(cache: Any, pages: jax.Array) -> Any:
    """A layer's cache with zeros in these pages, `[CLEANED]`."""
    return jax.tree.map(lambda part: part.at[pages].set(0), cache)


def calibrate(decoder: Decoder, shape: StepShape, weights: Params, caches: list[Any], packed: jax.Array) -> list[Any]:
    """Scales of an int8 KV cache, from what the mixers observe of a sample text."""
    batch, seen = shape.unpack(packed), list[Any]()
    decoder.hidden(weights, batch, batch.tokens, caches, observe=seen)
    return [mixer.calibrated(observed) for mixer, observed in zip(decoder.mixers, seen)]
