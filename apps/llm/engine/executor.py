"""The local executor: holds the model on the devices of this process and runs compiled steps on them.

`launch` starts a step and returns at once; `read` waits for its tokens. The engine launches step n + 1 before it
reads step n, so that it schedules and detokenizes while the device computes.

On a slice of several hosts each host has one, over the devices of all hosts. Every host makes the same calls in the
same order, and together they run one program (see `parallel.lockstep`).
"""

import logging
import os
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.arrays.programs import CompileCount, warming_up
from apps.llm.engine import sampling
from apps.llm.engine.adapters import stack
from apps.llm.engine.adapters.stack import Adapted
from apps.llm.engine.attention import choice, sharded
from apps.llm.engine.attention.spec import KVScales, LayerCache, cache_dtype
from apps.llm.engine.executor_protocol import Tokens, fitting, readable, step_shapes
from apps.llm.engine.model import params
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.decoder import Decoder
from apps.llm.engine.model.params import HeadLayout, Params
from apps.llm.engine.parallel import distributed
from apps.llm.engine.parallel.layout import Devices, Layout
from apps.llm.engine.parallel.products import skips_padding
from apps.llm.engine.readout import BLOCK, Launched, Readout, ReadoutPrograms
from apps.llm.engine.sampling import Extras, SamplingState
from apps.llm.engine.step import HostStep, StepShape
from apps.llm.engine.weights import prepared
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.prepared import Prepared
from apps.serving.progress import bar
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")

T = TypeVar("T")

CLEANED = 64
"""Pages that one call of the program fills with zeros."""


class ThisProcess:
    """The `DevicePlace` of the devices that this process sees."""

    def devices(self, config: EngineConfig) -> Devices:
        return distributed.here()

    def load(self, config: EngineConfig, model: Model, layout: Layout) -> "list[LocalExecutor]":
        meshes = distributed.meshes(layout)
        skips = skips_padding(meshes, jnp.dtype(config.dtype), config.quantize_weights == "int8")
        return [LocalExecutor(mesh, layout.of_dp_rank(config), model, skips) for mesh in meshes]


class LocalExecutor:
    """The `Executor` over the devices of this process.

    Args:
        mesh: the devices of one DP rank.
        config: that rank's.
        skips_padding: as `Executor` has it.
    """

    def __init__(self, mesh: Mesh, config: EngineConfig, model: Model, skips_padding: bool = False):
        arch = model.arch
        self.config, self.arch, self.mesh = config, arch, mesh
        self.spans_hosts = distributed.spans_hosts(mesh)
        self.compiles = CompileCount()
        self.dtype = jnp.dtype(config.dtype)
        self.skips_padding = skips_padding
        self.shapes = step_shapes(config, model.max_len(config), skips_padding)
        self.readable = readable(self.shapes)
        self.max_pages = self.shapes[0].max_pages
        self.kv_dtype = cache_dtype(config)
        platform = self.mesh.devices.flat[0].platform
        heads = HeadLayout.of(arch, self.mesh.shape["tensor"], config.expert_parallel)
        impl = choice.implementation(
            config.attention, self.mesh, arch.head_dims, config.page_size, arch.sinks, self.kv_dtype
        )
        self.decoder = Decoder(arch, heads, config.page_size, self.dtype, impl, self.mesh)
        self.int8_weights = config.quantize_weights == "int8"
        self.declared = declare(arch, heads)
        started = time.monotonic()
        if platform == "cpu" and not isinstance(model.checkpoint, Prepared):  # whose files are mapped, not read
            self._check_weights_fit()
        if model.checkpoint is None or model.random_weights:
            self.params = params.random(self.declared, self.mesh, self.dtype, self.int8_weights)
        else:
            load = prepared.load if isinstance(model.checkpoint, Prepared) else params.load
            self.params = load(self.declared, model.checkpoint, self.mesh, self.dtype, self.int8_weights)
        self.adapter_forms: list[Adapted] = []
        if config.adapter_places:
            sizes = config.adapter_places, config.max_adapter_rank
            self.adapter_forms = stack.abstract(arch, heads, self.mesh, self.dtype, *sizes)
            for layer, form in zip(self.params["layers"], self.adapter_forms):
                layer["adapters"] = stack.empty(form)
        jax.block_until_ready(self.params)
        log.info(
            "%.1f M parameters, %.2f GiB, on %d %s device(s) after %.1f s",
            arch.num_params / 1e6,
            params.nbytes(self.params) / 2**30,
            self.mesh.size,
            platform,
            time.monotonic() - started,
        )
        self.kv_scales: list[KVScales | None] | None = None
        self.pages = 0
        self.caches: list[LayerCache] = []

    # -- memory -------------------------------------------------------------------------------------------------

    def _check_weights_fit(self) -> None:
        """Refuse weights that this machine could never hold: reading them would end the process, and maybe others."""
        abstract = jax.tree.leaves(params.abstract(self.declared, self.mesh, self.dtype, self.int8_weights))
        whole = sum(leaf.size * leaf.dtype.itemsize for leaf in abstract)
        needed = whole * len(self.mesh.local_devices) // self.mesh.size
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > memory:
            raise MemoryError(
                f"the weights that config.json implies take {needed / 2**30:.0f} GiB, but this machine has "
                f"{memory / 2**30:.0f} GiB: use a larger one, more devices, or quantize_weights int8"
            )

    def make_cache(self, calibration_ids: list[int]) -> int:
        """Measure int8 scales if wanted, allocate the KV cache, and return how many pages it has."""
        if self.kv_dtype == jnp.int8:
            self.kv_scales = self._calibrate(calibration_ids)
        self.pages = self.config.pages or self._pages_that_fit()
        self.caches = self._empty_cache(self.pages, self.kv_dtype)
        rows, vocab = self.config.max_batch_size + 1, self.arch.vocab_size
        self.state = jax.jit(lambda: SamplingState.empty(rows, vocab), out_shardings=self._everywhere)()
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(self.caches))
        log.info("KV cache: %d pages of %d tokens, %.2f GiB", self.pages, self.config.page_size, size / 2**30)
        return self.pages

    def _empty_cache(self, pages: int, dtype: jnp.dtype) -> list[LayerCache]:
        return sharded.make_cache(self.decoder.impl, self.decoder.cache_specs(), pages, dtype, self.mesh)

    def _pages_that_fit(self) -> int:
        """Pages that fit into the configured share of free memory, at most what a full batch needs (and page 0)."""
        shapes = jax.tree.leaves(
            [self.decoder.impl.cache(spec, 1, self.kv_dtype) for spec in self.decoder.cache_specs() if spec]
        )
        page_bytes: float = sum(shape.size * shape.dtype.itemsize for shape in shapes)
        device = self.mesh.local_devices[0]
        if device.platform == "cpu":
            page_bytes *= len(self.mesh.local_devices) / self.mesh.size
            free = _free_host_memory() * self.config.memory_fraction / 2
        else:
            stats = device.memory_stats()
            page_bytes /= self.mesh.size
            # Working memory of a step: activations and logits of the largest one, with a margin.
            work = 4 * self.config.max_step_tokens * max(self.arch.intermediate_size, self.arch.hidden_size) * 4
            work += 4 * max(self.config.max_batch_size, BLOCK) * self.arch.vocab_size * 4
            free = (stats["bytes_limit"] - stats["bytes_in_use"]) * self.config.memory_fraction - work
        # Hosts differ in free memory, and every page takes memory on each of them.
        fit = distributed.least_over_hosts(int(free // page_bytes), self.mesh)
        most = self.config.max_batch_size * self.max_pages + 1
        if fit < self.max_pages + 1:
            raise MemoryError(
                f"the KV cache has room for {max(fit, 0)} pages of {self.config.page_size} tokens, less than one "
                f"sequence of {self.max_pages * self.config.page_size}: lower max_model_len, quantize weights or the "
                "KV cache to int8, or use a larger slice"
            )
        return min(fit, most)

    def _calibrate(self, ids: list[int]) -> list[KVScales | None]:
        """Scales of an int8 KV cache, from the largest keys and values over a sample text, with a margin of a tenth."""
        ids = ids[: self.max_pages * self.config.page_size]
        pages = -(-len(ids) // self.config.page_size)
        shape = StepShape(len(ids), 1, pages)
        step = shape.host()
        step.add(ids, len(ids), range(1, pages + 1), decoding=False)

        def observe(weights: Params, caches: list[LayerCache], packed: jax.Array) -> list[KVScales | None]:
            batch, rotated = shape.unpack(packed), self.arch.rope is not None
            seen: list[tuple[jax.Array, jax.Array] | None] = []
            self.decoder.hidden(weights, batch, batch.tokens, caches, observe=seen)
            return [kv and KVScales(_channel_scale(kv[0], rotated), _channel_scale(kv[1], False)) for kv in seen]

        heads = NamedSharding(self.mesh, P("tensor", None))
        run = jax.jit(observe, out_shardings=heads)
        return run(self.params, self._empty_cache(pages + 1, self.dtype), step.packed)

    # -- steps --------------------------------------------------------------------------------------------------

    @cached_property
    def _everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, P())

    def shape_for(self, tokens: int, seqs: int, reads: bool = False) -> StepShape:
        return fitting(self.readable if reads else self.shapes, tokens, seqs)

    @cached_property
    def step(self):
        return compiled_step(self.decoder)

    @cached_property
    def reader(self) -> ReadoutPrograms:
        return ReadoutPrograms(self.decoder, self.params)

    def warm_up(self) -> None:
        """Compile every shape and everything else a request may need; afterwards nothing compiles."""
        with warming_up(), bar("compiling programs", len(self.shapes) + 1) as advance:
            for shape in self.shapes:
                readout = Readout.everything(shape) if shape in self.readable else None
                self.read(self.launch(shape.host(), readout=readout))
                advance()
            self.start_slot(self.config.max_batch_size, [0], [0])
            self.clean([0])
            for layer in range(len(self.adapter_forms)):
                self.write_adapter(1, layer, None)
            advance()
        self._programs_when_ready = self.compiles.programs

    @property
    def compiles_after_ready(self) -> int:
        return self.compiles.programs - self._programs_when_ready

    def no_extras(self, seqs: int) -> Extras:
        """Empty extras, created once for each size and kept on the device."""
        if seqs not in self._idle_extras:
            self._idle_extras[seqs] = self._place(Extras.empty(seqs, self.arch.vocab_size))
        return self._idle_extras[seqs]

    @cached_property
    def _idle_extras(self) -> dict[int, Extras]:
        return {}

    def launch(self, step: HostStep, extras: Extras | None = None, readout: Readout | None = None) -> Launched:
        """Start a step; pass the result to `read`."""
        if extras is not None:  # placed like the empty ones: another placement would compile another program
            extras = self._place(extras)
        extras = extras or self.no_extras(step.shape.seqs)
        samples, hidden, self.caches, self.state = self.step(
            self.params, self.caches, self.state, self.kv_scales, self._given(step.packed), extras, step.shape
        )
        scores = pooled = None
        if readout is not None and readout.targets is not None:
            scores = self.reader.scores(hidden, self._given(readout.targets))
        if readout is not None and readout.rows is not None:
            pooled = self.reader.pooled(hidden, self._given(readout.rows), step.shape.seqs)
        launched = Launched(samples, scores, pooled)
        for part in launched:
            if part is not None:
                part.copy_to_host_async()
        return launched

    def read(self, launched: Launched) -> Tokens:
        """Wait for a launched step and unpack its results."""
        return Tokens.unpack(*launched.on_host())

    def start_slot(self, slot: int, prompt: list[int] | np.ndarray, answer: list[int] | np.ndarray) -> None:
        """Count a sequence's tokens for its penalties as it enters the batch."""
        padded = np.full((2, self.max_pages * self.config.page_size), -1, np.int32)
        padded[0, : len(prompt)], padded[1, : len(answer)] = prompt, answer
        self.state = self._start_slot(self.state, np.int32(slot), padded[0], padded[1])

    @cached_property
    def _start_slot(self):
        return jax.jit(sampling.start_slot, donate_argnums=0, out_shardings=self._everywhere)

    def clean(self, pages: Sequence[int]) -> None:
        """Fill pages with zeros, after the steps launched so far."""
        for first in range(0, len(pages), CLEANED):
            some = np.zeros(CLEANED, np.int32)  # page 0, which nobody reads, where there are fewer
            some[: len(pages[first : first + CLEANED])] = pages[first : first + CLEANED]
            self.caches = [None if cache is None else self._clean(cache, self._given(some)) for cache in self.caches]

    @cached_property
    def _clean(self):
        def zeros(cache: LayerCache, pages: jax.Array) -> LayerCache:
            return jax.tree.map(lambda part: part.at[pages].set(0), cache)

        shardings = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self.decoder.impl.partition())
        return jax.jit(zeros, donate_argnums=0, out_shardings=shardings)

    def write_adapter(self, place: int, layer: int, values: Adapted | None) -> None:
        """Write an adapter's matrices of one layer, arrays of the host, to its place (from 1); None: zeros."""
        own = self.params["layers"][layer]
        values = stack.unpacked(self.adapter_forms[layer], b"") if values is None else values
        own["adapters"] = stack.written(self.adapter_forms[layer], own["adapters"], values, place - 1)

    def close(self) -> None:
        """Nothing is held outside this process."""

    def _given(self, host: np.ndarray) -> jax.Array | np.ndarray:
        """A host array as an input of a compiled program, placed where the program expects it."""
        return self._place(host) if self.mesh.size > 1 else host

    def _place(self, host: T) -> T:
        """Replicate host arrays on every device of the mesh."""
        if not self.spans_hosts:
            return jax.device_put(host, self._everywhere)
        # device_put would run a collective to check that all hosts put the same value: 2 ms a step.
        return jax.tree.map(
            lambda part: jax.make_array_from_callback(part.shape, self._everywhere, lambda _: part), host
        )


def compiled_step(decoder: Decoder):
    """The jitted step: (weights, caches, state, kv_scales, packed, extras, shape) -> (samples, hidden, caches, state).

    Hidden states `[T, hidden]` are the last layer's output: see `readout`. Caches and state are donated. Lowers from
    abstract arrays too: see `params.abstract`.
    """

    def step(weights, caches, state, kv_scales, packed, extras, shape: StepShape):
        batch = shape.unpack(packed)
        first = batch.q_starts[:-1]
        tokens = batch.tokens.at[jnp.where(batch.decoding > 0, first, shape.tokens)].set(
            state.last_token[batch.rows], mode="drop"
        )
        hidden, caches = decoder.hidden(weights, batch, tokens, caches, kv_scales)
        last = hidden[jnp.maximum(batch.q_starts[1:] - 1, 0)]
        logits = decoder.logits(weights, last, batch.num_seqs)
        finite = None
        if kv_scales is not None:  # an int8 cache does not keep NaN: the last token need not see that of another
            bad = ~sampling.all_finite(hidden) & (jnp.arange(shape.tokens) < batch.q_starts[-1])
            of_seq = batch.sequence_of_token() == jnp.arange(shape.seqs)[:, None]
            finite = ~jnp.any(of_seq & bad, axis=1)
        samples, state = sampling.sample(logits, batch, state, extras, decoder.mesh, finite)
        if decoder.mesh.size > 1:  # replicated: each host reads its own copy and feeds its own state back
            everywhere = NamedSharding(decoder.mesh, P())
            hidden, state = jax.lax.with_sharding_constraint((hidden, state), everywhere)
        return samples, hidden, caches, state

    return jax.jit(step, static_argnames="shape", donate_argnums=(1, 2))


def _channel_scale(x: jax.Array, rotated: bool) -> jax.Array:
    """`[T, kv_heads, head_dim]` -> `[kv_heads, head_dim]`: int8 scales that cover the largest value seen."""
    largest = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=0)
    if rotated:
        # Rotary embedding rotates pairs of channels into each other, so both take the larger scale.
        pair = jnp.maximum(*jnp.split(largest, 2, axis=-1))
        largest = jnp.concatenate([pair, pair], axis=-1)
    return jnp.maximum(largest, 1e-6) * 1.1 / 127


def _free_host_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise MemoryError("/proc/meminfo has no MemAvailable: set `pages` in the config")
