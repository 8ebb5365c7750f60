"""The local executor: holds the model on the devices of this process and runs compiled steps on them.

`launch` starts a step and returns at once; `read` waits for its tokens. The engine launches step n + 1 before it
reads step n, so that it schedules and detokenizes while the device computes.

On a slice of several hosts each host has one, over the devices of all hosts. Every host makes the same calls in the
same order, and together they run one program (see `hosts.lockstep`).
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from apps.arrays import distributed
from apps.arrays.layout import Devices, Layout
from apps.arrays.programs import ProgramSet, alike, unlike, warming_up
from apps.arrays.stored_programs.loading import PreparedPrograms
from apps.llm.engine import kernels
from apps.llm.engine.adapters import stack
from apps.llm.engine.execute import memory, stored
from apps.llm.engine.execute.host_memory import HostMemory, pages_worth
from apps.llm.engine.execute.kept_states import StateMemory
from apps.llm.engine.execute.programs import CLEANED
from apps.llm.engine.execute.readout import Launched, Readout, head
from apps.llm.engine.execute.sampling import TokenConstraints
from apps.llm.engine.execute.step import HostStep, StepShape
from apps.llm.engine.executor_protocol import Tokens, fitting, shapes_with_readout
from apps.llm.engine.images.encoding import Encoding, ImageMemory
from apps.llm.engine.model import params
from apps.llm.engine.prefix.transfer import StateTransfer, Transfer
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.placed import placed
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
        of_rank = layout.of_dp_rank(config)
        prepared = stored.find(of_rank, model, meshes[0], skips)
        return [LocalExecutor(mesh, of_rank, model, skips, prepared) for mesh in meshes]


class LocalExecutor:
    """The `Executor` over the devices of this process.

    Args:
        mesh: the devices of one DP rank.
        config: that rank's.
        skips_padding: as `Executor` has it.
        prepared: the programs of all DP ranks.
    """

    def __init__(
        self,
        mesh: Mesh,
        config: EngineConfig,
        model: Model,
        skips_padding: bool = False,
        prepared: PreparedPrograms | None = None,
    ):
        self.config, self.arch, self.mesh = config, model.arch, mesh
        self.spans_hosts = distributed.spans_hosts(mesh)
        self.skips_padding, self._prepared = skips_padding, prepared
        self._specs = stored.listed(config, model, mesh, skips_padding)
        self.shapes = list(self._specs.shapes)
        self.readout_shapes = shapes_with_readout(self.shapes)
        self.max_pages = self.shapes[0].max_pages
        self.decoder, self.declared = self._specs.decoder, self._specs.declared
        self.int8_weights = config.quantize_weights == "int8"
        platform, started = mesh.devices.flat[0].platform, time.monotonic()
        if platform == "cpu" and not isinstance(model.checkpoint, Prepared):  # whose files are mapped, not read
            memory.check_weights_fit(self._specs)
        self.params = placed(model, self.declared, mesh, self.decoder.dtype, self.int8_weights)
        self.adapter_forms = self._specs.adapters
        for layer, form in zip(self.params["layers"], self.adapter_forms):
            layer["adapters"] = stack.empty(form)
        jax.block_until_ready(self.params)
        log.info(
            "%.1f M parameters, %.2f GiB, on %d %s device(s) after %.1f s",
            self.arch.num_params / 1e6,
            params.nbytes(self.params) / 2**30,
            self.mesh.size,
            platform,
            time.monotonic() - started,
        )
        self.kv_scales: list[Any] | None = None
        self.pages = self.host_pages = self.programs_compiled = 0
        self.prefix_states = config.prefix_states or 0
        self.encodings = self._specs.encodings
        self.caches: list[Any] = []
        self._host: HostMemory | None = None
        self._images: ImageMemory | None = None
        self._idle_constraints: dict[int, TokenConstraints] = {}  # by the number of sequences

    # -- memory -------------------------------------------------------------------------------------------------

    def make_cache(self, calibration_ids: list[int]) -> int:
        """Measure int8 scales if wanted, allocate the KV cache, and return how many pages it has."""
        ids = calibration_ids[: self.max_pages * self.config.page_size]
        self._least = ProgramSet([distributed.least(self.mesh)], self._prepared) if self.spans_hosts else None
        prepared = None if self._prepared is None else self._prepared.pages
        self.pages = self.config.pages or memory.pages_that_fit(self._specs, prepared, self._least)
        if prepared not in (None, self.pages):
            log.warning("programs are prepared for %d pages of KV cache; here %d fit", prepared, self.pages)
        self._specs = replace(self._specs, pages=self.pages, calibration=len(ids) if self._int8_cache else 0)
        self.programs = ProgramSet(self._specs.listed(), self._prepared)
        if self._int8_cache:
            self.kv_scales = self._calibrate(ids)
        self._paged_like, self._adapters_like = alike(self._specs.held_by("pages")), alike(self._specs.adapters)
        self.caches = self._empty_caches("cache", self._specs.caches)
        self.state = self.programs.once(("state",))()
        if self.encodings is not None:
            self._images = ImageMemory(self.programs, self._given)
        size = params.nbytes(self.caches) / 2**30
        log.info("KV cache: %d pages of %d tokens, %.2f GiB", self.pages, self.config.page_size, size)
        return self.pages

    @property
    def _int8_cache(self) -> bool:
        return self._specs.kv_dtype == jnp.int8

    def _empty_caches(self, name: str, forms: list[Any]) -> list[Any]:
        makers = {layer: self.programs.once((name, layer)) for layer, _ in unlike(forms)}
        return [None if layer is None else makers[layer]() for layer in alike(forms)]

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
            for call in self.encodings.each_empty() if self.encodings else ():
                self.encode(call)
            self.start_slot(self.config.max_batch_size, [0], [0])
            self.clean([0])
            if self.prefix_states:
                self._kept_states = StateMemory(self.programs, self._given)
                scratch = StateTransfer([self.config.max_batch_size], [0])
                self.keep_states(scratch)
                self.bring_back_states(scratch)
            for layer in range(len(self.adapter_forms)):
                self.write_adapter(1, layer, None)
        self.programs.ready()
        self.programs_compiled = self.programs.compiled

    def make_host_cache(self) -> None:
        """Allocate host memory for pages, if the config asks for it and copying is quicker than computing."""
        pages = self._specs.host_pages
        if not pages:
            return
        memory.check_host_cache_fits(self.config)
        with warming_up():
            self._host = HostMemory(self.programs, self._given)
            size, largest = self.config.page_size, self.shapes[-1]
            worth = pages_worth(self, size, largest, pages, lambda: jax.block_until_ready(self.caches))
            self.host_pages = distributed.least_over_hosts(worth, self.mesh, self._least)
        if not self.host_pages:
            self._host = None
            return
        log.info("host memory: %d pages, %.2f GiB", self.host_pages, self._host.nbytes / 2**30)

    @property
    def compiles_after_ready(self) -> int:
        return self.programs.compiles_after_ready

    def no_constraints(self, seqs: int) -> TokenConstraints:
        """Empty constraints, created once for each size and kept on the device."""
        if seqs not in self._idle_constraints:
            self._idle_constraints[seqs] = self._place(TokenConstraints.empty(seqs, self.arch.vocab_size))
        return self._idle_constraints[seqs]

    def launch(
        self, step: HostStep, constraints: TokenConstraints | None = None, readout: Readout | None = None
    ) -> Launched:
        """Start a step; pass the result to `read`."""
        if constraints is not None:  # placed like the empty ones: another placement would compile another program
            constraints = self._place(constraints)
        constraints = constraints or self.no_constraints(step.shape.seqs)
        tokens = step.shape.tokens
        given = self._given(step.packed), constraints, self._images and self._images.kept
        samples, hidden, self.caches, self.state = self.programs["step", tokens](
            self.params, self.caches, self.state, self.kv_scales, *given
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

    def encode(self, call: Encoding) -> None:
        """Encode images, after the steps launched so far and before the next."""
        assert self._images is not None  # as the engine takes images
        self._images.encode(self.params["tower"], call)

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

    def keep(self, transfer: Transfer) -> None:
        """Copy pages to host memory, after the steps launched so far."""
        assert self._host is not None  # its pool knows of it
        self._host.keep(self._held_by("pages"), transfer)

    def bring_back(self, transfer: Transfer) -> None:
        """Copy pages from host memory, after the steps launched so far."""
        assert self._host is not None
        self._take_in(self._host.bring_back(self._held_by("pages"), transfer))

    def keep_states(self, transfer: StateTransfer) -> None:
        """Copy states from slots to where they are kept, after the steps launched so far."""
        self._kept_states.keep(self._held_by("slots"), transfer)

    def bring_back_states(self, transfer: StateTransfer) -> None:
        """Copy kept states into slots, after the steps launched so far."""
        self._take_in(self._kept_states.bring_back(self._held_by("slots"), transfer))

    def _held_by(self, owner: Literal["pages", "slots"]) -> list[Any]:
        """The caches that are split into pages, or into slots; None in the place of others."""
        return [None if form is None else cache for form, cache in zip(self._specs.held_by(owner), self.caches)]

    def _take_in(self, caches: list[Any]) -> None:
        self.caches = [old if new is None else new for old, new in zip(self.caches, caches)]

    def write_adapter(self, index: int, layer: int, values: stack.Adapted | None) -> None:
        """Write an adapter's matrices of one layer, arrays of the host, at its index (from 1); None: zeros."""
        own, form = self.params["layers"][layer], self.adapter_forms[layer]
        values = stack.on_devices(form, stack.unpacked(form, b"") if values is None else values)
        if form:  # of a layer without, nothing can be adapted
            write = self.programs["adapter", self._adapters_like[layer]]
            own["adapters"] = write(own["adapters"], values, self._given(np.int32(index - 1)))

    def close(self) -> None:
        """Nothing is held outside this process."""

    def _given(self, host: np.ndarray | np.int32) -> Any:
        """A host array as an input of a compiled program, placed where the program expects it."""
        return self._place(host) if self.mesh.size > 1 else host

    def _place(self, host: T) -> T:
        """Replicate host arrays on every device of the mesh."""
        return distributed.replicated(host, self._specs.everywhere, self.spans_hosts)
