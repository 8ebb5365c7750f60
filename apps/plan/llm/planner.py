"""Plans one engine config on one slice: compiles its steps, counts their work, divides by the slice's peak rates."""

import math
from dataclasses import dataclass, replace

from apps.arrays.layout import Devices, Layout
from apps.llm.engine.attention.spec import AttentionSpec
from apps.llm.engine.execute.layout_choice import choose
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.executor_protocol import fitting, step_shapes
from apps.llm.engine.model.architecture import Architecture
from apps.plan import topology
from apps.plan.llm import architectures, bundles, capacity, experts, kernel
from apps.plan.llm.capacity import BatchMemory, Memory
from apps.plan.llm.kernel import Loops
from apps.plan.llm.program import MeasuredStep, StepPrograms, extrapolated
from apps.plan.llm.report import LargestBatch, LLMPlan, MemoryOfChip, ServingRates, StepReport
from apps.plan.measured import KernelCost, run_time
from apps.plan.report import core_notes, run_fields
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice
from ray_configs.tpu.peaks import Peaks

Sequences = list[tuple[int, int]]
"""For each sequence of a step: its tokens in the step, and its tokens in the KV cache after it."""


@dataclass(frozen=True)
class Workload:
    """The workload to plan for."""

    config: EngineConfig
    slice: TpuSlice
    prompt: int | None = None
    """Length of the prompt for the time to first token; default: a step's token budget, or half a sequence."""
    context: int | None = None
    """Tokens in each sequence's KV cache at the decode step; default: the longest sequence."""
    whole: bool = False
    """Compile all layers instead of extrapolating from a few."""


@dataclass(frozen=True)
class PlannedModel:
    """The programs of one DP rank on the slice, with as many pages as may fit."""

    workload: Workload
    config: EngineConfig
    """The DP rank's own config, with its share of the batch."""
    layout: Layout
    arch: Architecture
    source: str
    max_len: int
    programs: StepPrograms
    usable: int

    @classmethod
    def of(cls, workload: Workload) -> "PlannedModel":
        """Lays the model over the slice, without compiling.

        Raises:
            ValueError: the model does not split over the slice, or a length is beyond the model's.
            CheckpointError, UnsupportedModel: the architecture cannot be found or is not supported.
            NoCompiler: there is no TPU compiler, or it does not know the slice.
        """
        model = architectures.find(workload.config)
        arch, config = model.arch, model.config
        max_len = config.max_model_len or arch.max_position
        if max_len > arch.max_position:
            raise ValueError(f"max_model_len is {max_len}; this model's context is {arch.max_position}")
        for name, value in (("context", workload.context), ("prompt", workload.prompt)):
            if value is not None and not 1 <= value <= max_len:
                raise ValueError(f"{name} is {value}; it must be from 1 to the longest sequence, {max_len}")
        devices = Devices(len(topology.devices(workload.slice)), workload.slice.hosts)
        layout = choose(config, arch, devices, workload.slice)
        config = layout.of_dp_rank(config)
        mesh = topology.mesh(workload.slice, "tensor", layout.tensor)
        each = -(-max_len // config.page_size)
        most = config.pages or config.max_batch_size * each + 1
        usable = topology.usable_hbm(workload.slice)
        shapes = tuple(step_shapes(config, max_len, both_ways=arch.sees_both_ways))
        programs = StepPrograms(config, arch, mesh, shapes, most)
        room = (usable - programs.weight_bytes()) * config.memory_fraction
        fit = max(int(room // programs.page_bytes()), each + 1)
        return cls(
            workload, config, layout, arch, model.source, max_len, replace(programs, pages=min(most, fit)), usable
        )

    @property
    def shapes(self) -> tuple[StepShape, ...]:
        return self.programs.shapes

    @property
    def decode_shape(self) -> StepShape:
        batch = self.config.max_batch_size
        return fitting(self.shapes, batch, batch)

    def kernels(self, shape: StepShape, sequences: Sequences) -> list[KernelCost]:
        """The costs of the kernels of attention, of linear attention and of experts in a step of this shape."""
        programs, slice, int8 = self.programs, self.workload.slice, self.config.quantize_weights == "int8"
        decoder = programs.decoder

        def loops(spec: AttentionSpec) -> Loops | None:
            return bundles.of_attention(decoder, spec, programs.kv_dtype, slice, shape)

        return [
            kernel.attention(decoder, programs.caches, sequences, shape.max_pages, loops),
            KernelCost(0, 0, 0, bundles.of_linear_attention(programs, slice, shape.seqs)),
            experts.kernel(decoder, int8, shape.tokens, bundles.of_experts(programs, slice, shape.tokens)),
        ]

    @property
    def context(self) -> int:
        return self.workload.context or self.max_len

    @property
    def prompt(self) -> int:
        return self.workload.prompt or min(self.config.max_step_tokens, max(1, self.max_len // 2))


def plan(workload: Workload) -> LLMPlan:
    """Compiles the decode step and the largest prefill step, and derives the plan from them.

    Raises what `PlannedModel.of` does.
    """
    sized = PlannedModel.of(workload)
    decode = sized.programs.measure(sized.decode_shape, workload.whole)
    prefill = sized.programs.measure(sized.shapes[-1], workload.whole)
    return assembled(sized, decode, prefill)


def assembled(sized: PlannedModel, decode: MeasuredStep, prefill: MeasuredStep) -> LLMPlan:
    config, slice, programs, dp_ranks = sized.config, sized.workload.slice, sized.programs, sized.layout.data
    peaks = Peaks.of(slice, len(topology.devices(slice)))
    page_bytes = decode.kv_cache / programs.pages
    memory = capacity.memory(sized.shapes, (sized.decode_shape, decode), prefill, sized.usable)
    memory = replace(memory, images=programs.image_bytes())
    pages = min(programs.pages, capacity.most_pages(memory, page_bytes, config.memory_fraction))
    memory = memory.with_cache(pages * page_bytes)
    each = -(-sized.context // config.page_size)
    batch = min(config.max_batch_size, max(1, (pages - 1) // each))

    def step(shape: StepShape, measured: MeasuredStep, sequences: Sequences) -> StepReport:
        costs = sized.kernels(shape, sequences)
        run = run_fields(measured, costs, run_time(measured, costs, peaks))
        weights = measured.weights - measured.lookup - unread(sized, shape)
        least = weights + sum(n for _, n in sequences) * page_bytes / config.page_size
        return StepReport(
            **run,
            tokens=shape.tokens,
            sequences=len(sequences),
            context=max(length for _, length in sequences),
            weights_and_live_kv_bytes=least,
            hbm_over_least=run["hbm_bytes"] / least,
        )

    decoding = step(sized.decode_shape, decode, [(1, sized.context)] * batch)
    alone = step(sized.decode_shape, decode, [(1, sized.context)])
    many = max(1, min(config.max_step_tokens // sized.prompt, sized.shapes[-1].seqs))
    chunk = min(sized.prompt, config.max_step_tokens)
    prefilling = step(sized.shapes[-1], prefill, [(chunk, chunk)] * many)
    first = [step(shape, measured, [part]) for shape, measured, part in _prefills(sized, decode, prefill)]

    def rates(time: str) -> ServingRates:
        computed = many * chunk * dp_ranks / getattr(prefilling, time)
        first_s = sum(getattr(part, time) for part in first)
        steps = getattr(alone, time), getattr(decoding, time)
        return ServingRates.of(steps, first_s, computed, batch * dp_ranks, slice.chips)

    working = BatchMemory(config.max_batch_size, (decode.temporaries + decode.other_arguments) / config.max_batch_size)
    room = (sized.usable - (memory.total - memory.kv_cache)) * config.memory_fraction
    cores = len(topology.devices(slice)) // slice.chips
    layers = list(map(len, programs.samples(sized.workload.whole)))
    return LLMPlan(
        model=config.model,
        architecture_from=sized.source,
        parameters=sized.arch.num_params,
        active_parameters=sized.arch.active_params,
        slice=str(slice),
        chips=slice.chips,
        hosts=slice.hosts,
        devices_per_chip=cores,
        mesh={"data": dp_ranks, "tensor": sized.layout.tensor},
        weights="int8" if config.quantize_weights == "int8" else config.dtype,
        kv_cache=programs.kv_dtype.name,
        kv_padding=_padding(sized, page_bytes),
        batch=batch * dp_ranks,
        context=sized.context,
        prompt=sized.prompt,
        pages=pages,
        memory=_of_chip(memory, cores, fits=memory.fits and pages > -(-sized.max_len // config.page_size)),
        batches=[
            LargestBatch(context=length, batch=count * dp_ranks)
            for length, count in capacity.batches(room, page_bytes, config.page_size, sized.max_len, working)
        ],
        experts=experts.report(sized.programs.decoder, sized.decode_shape.tokens),
        decode=decoding,
        prefill=prefilling,
        at_floor=rates("floor_s"),
        estimate=rates("estimate_s"),
        layers=sized.arch.num_layers,
        layers_compiled=layers,
        compile_s=decode.seconds + prefill.seconds,
        notes=_notes(sized, decode, decoding, peaks, cores, batch, layers),
    )


def _prefills(
    sized: PlannedModel, decode: MeasuredStep, prefill: MeasuredStep
) -> list[tuple[StepShape, MeasuredStep, tuple[int, int]]]:
    """The prefill steps of a single prompt: full token budgets, then the rest in the smallest step that holds it.

    The cost of that smaller step is interpolated, by tokens, between the two that were compiled.
    """
    small, large = sized.decode_shape.tokens, sized.shapes[-1].tokens
    steps, done = [], 0
    while done < sized.prompt:
        tokens = min(sized.prompt - done, large)
        shape = fitting(sized.shapes, tokens, 1)
        done += tokens
        cost = measured_at(sized, decode, prefill, shape)
        if shape.tokens <= small < large:
            shape = sized.decode_shape
        steps.append((shape, cost, (tokens, done)))
    return steps


def measured_at(sized: PlannedModel, decode: MeasuredStep, prefill: MeasuredStep, shape: StepShape) -> MeasuredStep:
    """A step of any shape: by its tokens, between the two that were compiled; a smaller one as the decode step."""
    small, large = sized.decode_shape.tokens, sized.shapes[-1].tokens
    if small < shape.tokens < large:
        return extrapolated(decode, (prefill, (shape.tokens - small) / (large - small)))
    return decode if shape.tokens <= small < large else prefill


def unread(sized: PlannedModel, shape: StepShape) -> float:
    """Bytes of the experts on each device that no token of a step picks."""
    mixture, devices = sized.arch.experts, sized.programs.mesh.size
    if mixture is None:
        return 0.0
    itemsize = 1 if sized.config.quantize_weights == "int8" else sized.programs.decoder.dtype.itemsize
    idle = 1 - experts.load(mixture, shape.tokens, 1).read
    return idle * experts.weights(sized.arch, mixture, devices, itemsize)


def _of_chip(memory: Memory, cores: int, fits: bool) -> MemoryOfChip:
    sizes = (name for name in MemoryOfChip.model_fields if name != "fits")
    return MemoryOfChip(**{name: getattr(memory, name) * cores / 2**30 for name in sizes}, fits=fits)


def _padding(sized: PlannedModel, page_bytes: float) -> float:
    attended = (spec.attention for spec in sized.arch.layers if spec.attention and spec.attention.owns_cache)
    own = 2 * sum(each.num_kv_heads * each.head_dim for each in attended) * sized.programs.kv_dtype.itemsize
    return page_bytes / sized.config.page_size * math.prod(sized.programs.mesh.shape.values()) / own


def _notes(
    sized: PlannedModel, decode: MeasuredStep, step: StepReport, peaks: Peaks, cores: int, batch: int, layers: list[int]
) -> list[str]:
    config, generation = sized.config, sized.workload.slice.generation
    notes = [f"The model's sizes are from {sized.source}."]
    if sized.layout.data > 1:
        notes.append(
            f"{sized.layout.data} DP ranks, each over {sized.layout.tensor} devices; a step is one rank's, "
            f"with its share of the batch, {config.max_batch_size}."
        )
    if len(layers) > 1:
        notes.append(
            f"Programs of {' and '.join(map(str, layers))} layers were compiled, and the figures for "
            f"{sized.arch.num_layers} layers extrapolated from them (--whole compiles all)."
        )
    if (load := experts.report(sized.programs.decoder, sized.decode_shape.tokens)) is not None:
        notes.append(load.sentence())
    padding = _padding(sized, decode.kv_cache / sized.programs.pages)
    if padding > 1.01:
        notes.append(
            f"The KV cache takes {padding:.2g} times its own bytes on this mesh: key/value heads are repeated where "
            "there are fewer than devices, and each device's share is filled up to what the kernel can tile."
        )
    if batch < config.max_batch_size:
        notes.append(
            f"There is room for {batch} sequences of {sized.context} tokens in each copy, not for its share of "
            f"max_batch_size ({config.max_batch_size}); the decode step is computed with {batch}."
        )
    notes += core_notes(sized.workload.slice, cores)
    if peaks.cycles_per_s is None:
        notes.append(f"No clock is published for {generation}: the compiler's cycles are left out of the estimate.")
    if decode.kernels and peaks.cycles_per_s:
        asked = (decode.cycles_everything - decode.cycles) / peaks.cycles_per_s * 1e3
        notes.append(
            "The decode step has greedy requests only. If any asks for sampling, penalties, biases and log "
            f"probabilities, the compiler's own estimate grows by {asked:.2f} ms or more."
        )
    return notes
