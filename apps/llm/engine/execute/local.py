"""The local executor: holds the model on the devices of this process and runs compiled steps on them.

`launch` starts a step and returns at once; `read` waits for its tokens. The engine launches step n + 1 before it
reads step n, so that it schedules and detokenizes while the device computes.

On a slice of several hosts each host has one, over the devices of all hosts. Every host makes the same calls in the
same order, and together they run one program (see `hosts.lockstep`).
"""

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from apps.arrays import distributed
from apps.arrays.layout import Devices, Layout
from apps.arrays.programs import ProgramSet, warming_up
from apps.llm.engine import kernels
from apps.llm.engine.adapters import stack
from apps.llm.engine.adapters.stack import Adapted
from apps.llm.engine.execute.programs import CLEANED, EnginePrograms, alike, unlike
from apps.llm.engine.execute.readout import BLOCK, Launched, Readout, head
from apps.llm.engine.execute.sampling import TokenConstraints
from apps.llm.engine.execute.step import HostStep, StepShape
from apps.llm.engine.executor_protocol import Tokens, fitting, shapes_with_readout, step_shapes
from apps.llm.engine.model import params
from apps.llm.engine.weights import prepared_shards
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.prepared import Prepared
from apps.serving.progress import bar
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")

T = TypeVar("T")


class LocalDevices:
    """The `ExecutorProvider` of the devices that this process sees."""

    def devices(self, config: EngineConfig) -> Devices:
        return distributed.here()

    def load(self, config: EngineConfig, model: Model, layout: Layout) -> "list[LocalExecutor]":
        meshes = distributed.meshes(layout)
        skips = kernels.skips_padding(meshes, jnp.dtype(config.dtype), config.quantize_weights == "int8")
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
        self.skips_padding = skips_padding
        self.shapes = step_shapes(config, model.max_len(config), skips_padding)
        self.readout_shapes = shapes_with_readout(self.shapes)
        self.max_pages = self.shapes[0].max_pages
        self._specs = EnginePrograms(config, arch, mesh, tuple(self.shapes))
        self.decoder, self.declared = self._specs.decoder, self._specs.declared
        self.int8_weights = config.quantize_weights == "int8"
        dtype, platform = self.decoder.dtype, self.mesh.devices.flat[0].platform
        started = time.monotonic()
        if platform == "cpu" and not isinstance(model.checkpoint, Prepared):  # whose files are mapped, not read
            self._check_weights_fit()
        declared, to = self.declared, (self.mesh, dtype, self.int8_weights)
        if model.checkpoint is None or model.random_weights:
            self.params = params.random(declared, *to)
        elif isinstance(model.checkpoint, Prepared):
            self.params = prepared_shards.load(declared, model.checkpoint, *to)
        else:
            self.params = params.load(declared, model.checkpoint, *to)
        self.adapter_forms = self._specs.adapters
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
        self.kv_scales: list[Any] | None = None
        self.pages = 0
        self.caches: list[Any] = []

    # -- memory -------------------------------------------------------------------------------------------------

    def _check_weights_fit(self) -> None:
        """Refuse weights that this machine could never hold: reading them would end the process, and maybe others."""
        abstract = jax.tree.leaves(params.abstract(self.declared, self.mesh, self.decoder.dtype, self.int8_weights))
        whole = sum(leaf.size * leaf.dtype.itemsize for leaf in abstract)
        needed = whole * len(self.mesh.local_devices) // self.mesh.size
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > memory:
            smaller = "or more devices" if self.int8_weights else "more devices, or quantize_weights int8"
            raise MemoryError(
                f"the weights that config.json implies take {needed / 2**30:.0f} GiB, but this machine has "
                f"{memory / 2**30:.0f} GiB: use a larger one, {smaller}"
            )

    def make_cache(self, calibration_ids: list[int]) -> int:
        """Measure int8 scales if wanted, allocate the KV cache, and return how many pages it has."""
        ids = calibration_ids[: self.max_pages * self.config.page_size]
        self.pages = self.config.pages or self._pages_that_fit()
        self._specs = replace(self._specs, pages=self.pages, calibration=len(ids) if self._int8_cache else 0)
        self.programs = ProgramSet(self._specs.listed())
        if self._int8_cache:
            self.kv_scales = self._calibrate(ids)
        self._paged_like, self._adapters_like = alike(self._specs.held_by("pages")), alike(self._specs.adapters)
        self.caches = self._empty_caches("cache", self._specs.caches)
        self.state = self.programs.once(("state",))()
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(self.caches))
        log.info("KV cache: %d pages of %d tokens, %.2f GiB", self.pages, self.config.page_size, size / 2**30)
        return self.pages

    @property
    def _int8_cache(self) -> bool:
        return self._specs.kv_dtype == jnp.int8

    def _empty_caches(self, name: str, forms: list[Any]) -> list[Any]:
        makers = {layer: self.programs.once((name, layer)) for layer, _ in unlike(forms)}
        return [None if layer is None else makers[layer]() for layer in alike(forms)]

    def _pages_that_fit(self) -> int:
        """Pages that fit into the configured share of free memory, at most what a full batch needs (and page 0)."""
        one = replace(self._specs, pages=1)
        page_bytes: float = one.bytes_held_by("pages")
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
            work += one.bytes_held_by("slots") // self.mesh.size
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

    def _calibrate(self, ids: list[int]) -> list[Any]:
        shape = self._specs.calibration_shape
        step = shape.host()
        step.add(ids, len(ids), range(1, shape.max_pages + 1), decoding=False)
        caches = self._empty_caches("calibration cache", self._specs.calibration_caches)
        return self.programs.once(("calibrate",))(self.params, caches, self._given(step.packed))

    # -- steps --------------------------------------------------------------------------------------------------

    def shape_for(self, tokens: int, seqs: int, reads: bool = False) -> StepShape:
        return fitting(self.readout_shapes if reads else self.shapes, tokens, seqs)

    def warm_up(self) -> None:
        """Compile everything that a request may need, and run it once; afterwards nothing compiles."""
        with bar("compiling programs", len(self.programs.missing())) as advance:
            self.programs.compile(lambda key, seconds: advance())
        with warming_up():
            for shape in self.shapes:
                readout = Readout.everything(shape) if shape in self.readout_shapes else None
                self.read(self.launch(shape.host(), readout=readout))
            self.start_slot(self.config.max_batch_size, [0], [0])
            self.clean([0])
            for layer in range(len(self.adapter_forms)):
                self.write_adapter(1, layer, None)
        self.programs.ready()

    @property
    def compiles_after_ready(self) -> int:
        return self.programs.compiles_after_ready

    def no_constraints(self, seqs: int) -> TokenConstraints:
        """Empty constraints, created once for each size and kept on the device."""
        if seqs not in self._idle_constraints:
            self._idle_constraints[seqs] = self._place(TokenConstraints.empty(seqs, self.arch.vocab_size))
        return self._idle_constraints[seqs]

    @cached_property
    def _idle_constraints(self) -> dict[int, TokenConstraints]:
        return {}

    def launch(
        self, step: HostStep, constraints: TokenConstraints | None = None, readout: Readout | None = None
    ) -> Launched:
        """Start a step; pass the result to `read`."""
        if constraints is not None:  # placed like the empty ones: another placement would compile another program
            constraints = self._place(constraints)
        constraints = constraints or self.no_constraints(step.shape.seqs)
        tokens = step.shape.tokens
        samples, hidden, self.caches, self.state = self.programs["step", tokens](
            self.params, self.caches, self.state, self.kv_scales, self._given(step.packed), constraints
        )
        scores = pooled = None
        if readout is not None and readout.targets is not None:
            scores = self.programs["scores", tokens](head(self.params), hidden, self._given(readout.targets))
        if readout is not None and readout.rows is not None:
            pooled = self.programs["pooled", tokens](head(self.params), hidden, self._given(readout.rows))
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
        self.state = self.programs["start slot",](self.state, *map(self._given, (np.int32(slot), *padded)))

    def clean(self, pages: Sequence[int]) -> None:
        """Fill pages with zeros, after the steps launched so far."""
        for first in range(0, len(pages), CLEANED):
            some = np.zeros(CLEANED, np.int32)  # page 0, which nobody reads, where there are fewer
            some[: len(pages[first : first + CLEANED])] = pages[first : first + CLEANED]
            given = self._given(some)
            self.caches = [
                cache if layer is None else self.programs["clean", layer](cache, given)
                for layer, cache in zip(self._paged_like, self.caches)
            ]

    def write_adapter(self, index: int, layer: int, values: Adapted | None) -> None:
        """Write an adapter's matrices of one layer, arrays of the host, at its index (from 1); None: zeros."""
        own, form = self.params["layers"][layer], self.adapter_forms[layer]
        values = stack.unpacked(form, b"") if values is None else values
        write = self.programs["adapter", self._adapters_like[layer]]
        own["adapters"] = write(own["adapters"], stack.on_devices(form, values), self._given(np.int32(index - 1)))

    def close(self) -> None:
        """Nothing is held outside this process."""

    def _given(self, host: np.ndarray | np.int32) -> Any:
        """A host array as an input of a compiled program, placed where the program expects it."""
        return self._place(host) if self.mesh.size > 1 else host

    def _place(self, host: T) -> T:
        """Replicate host arrays on every device of the mesh."""
        if not self.spans_hosts:
            return jax.device_put(host, self._specs.everywhere)
        # device_put would run a collective to check that all hosts put the same value: 2 ms a step.
        return jax.tree.map(
            lambda part: jax.make_array_from_callback(part.shape, self._specs.everywhere, lambda _: part), host
        )


def _free_host_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise MemoryError("/proc/meminfo has no MemAvailable: set `pages` in the config")
