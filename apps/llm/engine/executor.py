"""The executor: holds the model on this process's devices and runs compiled steps on it.

`launch` starts a step and returns at once; `read` waits for its tokens. The engine launches step n + 1 before it
reads step n, so that scheduling and detokenizing happen while the device works.
"""

import logging
import os
import time
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.llm.engine import attention, params, sampling
from apps.llm.engine.architecture import Architecture
from apps.llm.engine.attention import KVScales, LayerCache
from apps.llm.engine.checkpoint import Checkpoint
from apps.llm.engine.decoder import Decoder
from apps.llm.engine.params import HeadLayout, Params
from apps.llm.engine.progress import bar
from apps.llm.engine.sampling import Extras, SamplingState
from apps.llm.engine.step import HostStep, StepShape
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")

SMALLEST_STEP = 8  # tokens; from 4 rows on, XLA:CPU's matrix products give each row the same bits whatever the others


class Tokens(NamedTuple):
    """A step's samples on the host, each by the step's sequence."""

    ids: np.ndarray  # [S] int32
    logprob: np.ndarray  # [S] float32; zeros unless some sequence wanted them
    top_ids: np.ndarray  # [S, TOP_LOGPROBS]
    top_logprobs: np.ndarray


class CompileCount:
    """Counts programs that XLA compiles (or fetches from the persistent cache) in this process."""

    def __init__(self) -> None:
        self.programs = 0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self.programs += 1


def use_compile_cache(folder: str | None) -> None:
    """Keep compiled programs in a folder, whatever their size and however quickly they compiled."""
    if folder is None:
        return
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(path / "numba"))  # the CPU attention's kernels
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def choose_mesh(config: EngineConfig) -> Mesh:
    """One axis, "tensor", over the devices that share the model.

    Raises:
        ValueError: tensor_parallel asks for more devices than there are.
    """
    devices = jax.local_devices()
    count = config.tensor_parallel or (1 if devices[0].platform == "cpu" else len(devices))
    if count > len(devices):
        raise ValueError(f"tensor_parallel is {count} but this host has {len(devices)} {devices[0].platform} devices")
    return Mesh(np.array(devices[:count]), ("tensor",))


def token_buckets(config: EngineConfig) -> list[int]:
    """Step sizes to compile: powers of two, from 128 on also halfway between them, up to the token budget."""
    sizes = [SMALLEST_STEP << i for i in range(32)]
    sizes += [size * 3 // 2 for size in sizes if size >= 128]
    return [*sorted(size for size in sizes if size < config.max_step_tokens), config.max_step_tokens]


class LocalExecutor:
    """The model on the devices of this process."""

    def __init__(
        self, config: EngineConfig, arch: Architecture, checkpoint: Checkpoint, max_len: int, mesh: Mesh | None = None
    ):
        self.config, self.arch = config, arch
        self.mesh = mesh or choose_mesh(config)
        self.compiles = CompileCount()
        self.dtype = jnp.dtype(config.dtype)
        self.max_pages = -(-max_len // config.page_size)
        platform = self.mesh.devices.flat[0].platform
        heads = HeadLayout.of(arch, self.mesh.shape["tensor"])
        impl = attention.implementation(config.attention, self.mesh, arch.head_dim, config.page_size)
        self.decoder = Decoder(arch, heads, config.page_size, self.dtype, impl, self.mesh)
        self.int8_weights = config.quantize_weights == "int8"
        self.int8_kv = config.quantize_kv_cache == "int8"
        self.declared = params.declare(arch, heads)
        started = time.monotonic()
        if config.random_weights:
            self.params = params.random(self.declared, self.mesh, self.dtype, self.int8_weights)
        else:
            self.params = params.load(self.declared, checkpoint, self.mesh, self.dtype, self.int8_weights, True)
        jax.block_until_ready(self.params)
        log.info(
            "%.1f M parameters, %.2f GiB, on %d %s device(s) after %.1f s",
            arch.num_params / 1e6,
            params.nbytes(self.params) / 2**30,
            self.mesh.size,
            platform,
            time.monotonic() - started,
        )
        self.kv_scales: list[KVScales] | None = None
        self.pages = 0
        self.caches: list[LayerCache] = []

    # -- memory -------------------------------------------------------------------------------------------------

    def make_cache(self, calibration_ids: list[int]) -> int:
        """Measure int8 scales if wanted, allocate the KV cache, and return how many pages it has."""
        if self.int8_kv:
            self.kv_scales = self._calibrate(calibration_ids)
        self.pages = self.config.pages or self._pages_that_fit()
        dtype = jnp.dtype(jnp.int8) if self.int8_kv else self.dtype
        self.caches = self._empty_cache(self.pages, dtype)
        self.state = jax.device_put(
            SamplingState.empty(self.config.max_batch_size + 1, self.arch.vocab_size), self._everywhere
        )
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(self.caches))
        log.info("KV cache: %d pages of %d tokens, %.2f GiB", self.pages, self.config.page_size, size / 2**30)
        return self.pages

    def _empty_cache(self, pages: int, dtype: jnp.dtype) -> list[LayerCache]:
        spec = self.decoder.attention_spec(0)
        return attention.make_cache(self.decoder.impl, spec, self.arch.num_layers, pages, dtype, self.mesh)

    def _pages_that_fit(self) -> int:
        """Pages in the free memory's share, at most what a full batch of longest sequences needs (and page 0)."""
        spec = self.decoder.attention_spec(0)
        dtype = jnp.dtype(jnp.int8) if self.int8_kv else self.dtype
        shapes = jax.tree.leaves(self.decoder.impl.cache(spec, 1, dtype))
        page_bytes = sum(shape.size * shape.dtype.itemsize for shape in shapes) * self.arch.num_layers
        device = self.mesh.devices.flat[0]
        if device.platform == "cpu":
            free = _free_host_memory() * self.config.memory_fraction / 2
        else:
            stats = device.memory_stats()
            page_bytes /= self.mesh.size
            # A step's own working memory: activations of the largest step and its logits, with room to spare.
            work = 4 * self.config.max_step_tokens * max(self.arch.intermediate_size, self.arch.hidden_size) * 4
            work += 4 * self.config.max_batch_size * self.arch.vocab_size * 4
            free = (stats["bytes_limit"] - stats["bytes_in_use"]) * self.config.memory_fraction - work
        fit, most = int(free // page_bytes), self.config.max_batch_size * self.max_pages + 1
        if fit < self.max_pages + 1:
            raise MemoryError(
                f"the KV cache has room for {max(fit, 0)} pages of {self.config.page_size} tokens, less than one "
                f"sequence of {self.max_pages * self.config.page_size}: lower max_model_len, quantize weights or the "
                "KV cache to int8, or use a larger slice"
            )
        return min(fit, most)

    def _calibrate(self, ids: list[int]) -> list[KVScales]:
        """Scales of an int8 KV cache from the largest keys and values over some text, with a tenth to spare."""
        ids = ids[: self.max_pages * self.config.page_size]
        pages = -(-len(ids) // self.config.page_size)
        shape = StepShape(len(ids), 1, pages)
        step = shape.host()
        step.add(ids, len(ids), range(1, pages + 1), decoding=False)

        def observe(weights: Params, caches: list[LayerCache], packed: jax.Array) -> list[KVScales]:
            batch, seen = shape.unpack(packed), []
            self.decoder.hidden(weights, batch, batch.tokens, caches, observe=seen)
            return [KVScales(_channel_scale(k, rotated=True), _channel_scale(v, rotated=False)) for k, v in seen]

        heads = NamedSharding(self.mesh, P("tensor", None))
        run = jax.jit(observe, out_shardings=heads)
        return run(self.params, self._empty_cache(pages + 1, self.dtype), step.packed)

    # -- steps --------------------------------------------------------------------------------------------------

    @cached_property
    def _everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, P())

    @cached_property
    def shapes(self) -> list[StepShape]:
        batch = self.config.max_batch_size
        return [StepShape(tokens, min(tokens, batch), self.max_pages) for tokens in token_buckets(self.config)]

    def shape_for(self, tokens: int, seqs: int) -> StepShape:
        return next(shape for shape in self.shapes if shape.tokens >= tokens and shape.seqs >= seqs)

    @cached_property
    def step(self):
        return compiled_step(self.decoder)

    def warm_up(self) -> None:
        """Compile every shape and everything else a request may need; afterwards nothing compiles."""
        with bar("compiling steps", len(self.shapes) + 1) as advance:
            for shape in self.shapes:
                self.read(self.launch(shape.host()))
                advance()
            self.start_row(self.config.max_batch_size, [0], [0])
            advance()
        self._programs_when_ready = self.compiles.programs

    @property
    def compiles_after_ready(self) -> int:
        return self.compiles.programs - self._programs_when_ready

    def no_extras(self, seqs: int) -> Extras:
        """Inputs that say nothing, made once for each size and left on the device."""
        if seqs not in self._idle_extras:
            words = -(-self.arch.vocab_size // 32)
            host = Extras(
                np.zeros((seqs, words), np.uint32),
                np.zeros((seqs, sampling.MAX_BIAS), np.int32),
                np.zeros((seqs, sampling.MAX_BIAS), np.float32),
                np.zeros(2, np.int32),
            )
            self._idle_extras[seqs] = jax.device_put(host, self._everywhere)
        return self._idle_extras[seqs]

    @cached_property
    def _idle_extras(self) -> dict[int, Extras]:
        return {}

    def launch(self, step: HostStep, extras: Extras | None = None) -> jax.Array:
        """Start a step; the result is for `read`."""
        if extras is not None:  # placed as the idle ones are: another placement would be another program
            extras = jax.device_put(extras, self._everywhere)
        extras = extras or self.no_extras(step.shape.seqs)
        packed = jax.device_put(step.packed, self._everywhere) if self.mesh.size > 1 else step.packed
        samples, self.caches, self.state = self.step(
            self.params, self.caches, self.state, self.kv_scales, packed, extras, step.shape
        )
        samples.copy_to_host_async()
        return samples

    def read(self, samples: jax.Array) -> Tokens:
        """Wait for a launched step and unpack what it sampled."""
        host = np.asarray(samples)
        top = (host.shape[1] - 2) // 2
        return Tokens(
            host[:, 0], host[:, 1].view(np.float32), host[:, 2 : 2 + top], host[:, 2 + top :].view(np.float32)
        )

    def start_row(self, row: int, prompt: list[int], answer: list[int]) -> None:
        """Count a sequence's tokens for its penalties as it enters the batch."""
        padded = np.full((2, self.max_pages * self.config.page_size), -1, np.int32)
        padded[0, : len(prompt)], padded[1, : len(answer)] = prompt, answer
        self.state = self._start_row(self.state, np.int32(row), padded[0], padded[1])

    @cached_property
    def _start_row(self):
        return jax.jit(sampling.start_row, donate_argnums=0)


def compiled_step(decoder: Decoder):
    """The jitted step: (weights, caches, state, kv_scales, packed, extras, shape) -> (samples, caches, state).

    Caches and state are donated. Lowers from abstract arrays too: see `params.abstract`.
    """

    def step(weights, caches, state, kv_scales, packed, extras, shape: StepShape):
        batch = shape.unpack(packed)
        first = batch.q_starts[:-1]
        tokens = batch.tokens.at[jnp.where(batch.decoding > 0, first, shape.tokens)].set(
            state.last_token[batch.rows], mode="drop"
        )
        hidden, caches = decoder.hidden(weights, batch, tokens, caches, kv_scales)
        last = hidden[jnp.maximum(batch.q_starts[1:] - 1, 0)]
        sampled, state = sampling.sample(decoder.logits(weights, last), batch, state, extras)
        return sampling.pack(sampled), caches, state

    return jax.jit(step, static_argnames="shape", donate_argnums=(1, 2))


def _channel_scale(x: jax.Array, rotated: bool) -> jax.Array:
    """`[T, kv_heads, head_dim]` -> `[kv_heads, head_dim]`: int8 steps that span the largest value seen."""
    largest = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=0)
    if rotated:
        # Rotary embedding turns a pair of channels into each other as positions grow: they share the larger scale.
        pair = jnp.maximum(*jnp.split(largest, 2, axis=-1))
        largest = jnp.concatenate([pair, pair], axis=-1)
    return jnp.maximum(largest, 1e-6) * 1.1 / 127


def _free_host_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise MemoryError("/proc/meminfo has no MemAvailable: set `pages` in the config")
