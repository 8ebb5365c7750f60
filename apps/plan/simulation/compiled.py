"""Step times on a slice, from the programs that its compiler made: see `apps.plan.llm.planner`."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from apps.llm.engine.execute.step import StepShape
from apps.plan import topology
from apps.plan.llm import bundles, experts, kernel
from apps.plan.llm.kernel import LayerKernel
from apps.plan.llm.planner import PlannedModel, Workload, assembled, measured_at
from apps.plan.llm.program import MeasuredStep
from apps.plan.llm.report import LLMPlan
from apps.plan.measured import run_time
from apps.plan.simulation.timing import StepCost
from ray_configs.tpu.peaks import Peaks


@dataclass(frozen=True)
class CompiledShape:
    """What a step of one shape takes, by the compiler's figures."""

    fixed: StepCost
    """Without attention, whose time depends on the sequences."""
    at_peak: StepCost
    """Each resource's time by itself, likewise: none waits for another."""
    attention: list[LayerKernel]


@dataclass(frozen=True)
class CompiledTimes:
    """Step times of one DP rank.

    Args:
        correction: times the estimate; see the calibration page.
        at_floor: only the longest resource's time at peak instead; no step can be faster.
    """

    model: PlannedModel
    decode: MeasuredStep
    prefill: MeasuredStep
    correction: float = 1.0
    at_floor: bool = False

    remembers = 0

    def cost(self, decodes: Sequence[int], chunks: Sequence[tuple[int, int]], since: int = 0) -> StepCost:
        """See `StepClock`."""
        tokens = len(decodes) + sum([tokens for tokens, _ in chunks])
        shape = self._shapes[bisect_left(self._sizes, tokens)]
        hbm, compute, ici = shape.at_peak if self.at_floor else shape.fixed
        peaks = self.peaks
        for layers in shape.attention:
            bytes_read, flops, cycles = layers.cost(decodes, chunks)
            reading = bytes_read / peaks.hbm_bytes_per_s
            if self.at_floor:
                hbm += reading  # operations on masked positions, which the kernel computes too, are no floor
                continue
            more_hbm, more_compute = _split(reading, _computing(flops, cycles, peaks))
            hbm, compute = hbm + more_hbm, compute + more_compute
        if self.at_floor:
            parts = hbm, compute, ici
            longest = parts.index(max(parts))
            return StepCost(*(part if cause == longest else 0.0 for cause, part in enumerate(parts)))
        return StepCost(hbm * self.correction, compute * self.correction, ici * self.correction)

    @cached_property
    def peaks(self) -> Peaks:
        slice = self.model.workload.slice
        return Peaks.of(slice, len(topology.devices(slice)))

    @cached_property
    def _sizes(self) -> list[int]:
        return [shape.tokens for shape in self.model.shapes]

    @cached_property
    def _shapes(self) -> list[CompiledShape]:
        return [self._compiled(shape) for shape in self.model.shapes]

    def _compiled(self, shape: StepShape) -> CompiledShape:
        model, decoder = self.model, self.model.programs.decoder
        # Only two steps were compiled; the instructions of a kernel are counted in the one that is like it.
        alike = model.decode_shape if shape.tokens <= model.decode_shape.tokens else model.shapes[-1]
        attention = kernel.layer_kernels(
            decoder,
            model.programs.caches,
            (shape.tokens, shape.seqs, shape.max_pages),
            lambda spec: bundles.of_attention(decoder, spec, model.programs.kv_dtype, model.workload.slice, alike),
        )
        loops = bundles.of_experts(model.programs, model.workload.slice, alike.tokens)
        mixture = experts.kernel(decoder, model.config.quantize_weights == "int8", shape.tokens, loops)
        measured = measured_at(model, self.decode, self.prefill, shape)
        time = run_time(measured, [mixture], self.peaks)
        hbm, compute = _split(time.xla_hbm, time.compiler or 0.0)
        more_hbm, more_compute = _split(
            mixture.hbm_bytes / self.peaks.hbm_bytes_per_s, _computing(mixture.flops, mixture.cycles, self.peaks)
        )
        return CompiledShape(
            StepCost(hbm + more_hbm, compute + more_compute, time.ici),
            StepCost(time.hbm, time.compute, time.ici),
            attention,
        )


def _split(reading: float, computing: float) -> tuple[float, float]:
    """The longer of the two, as what it is."""
    return (reading, 0.0) if reading >= computing else (0.0, computing)


def _computing(flops: float, cycles: float, peaks: Peaks) -> float:
    return max(flops / peaks.flops_per_s, cycles / peaks.cycles_per_s if peaks.cycles_per_s else 0.0)


def compile_times(workload: Workload, correction: float = 1.0) -> tuple[LLMPlan, CompiledTimes]:
    """Compile a config's steps for its slice. Takes a minute or more; raises what `PlannedModel.of` does."""
    model = PlannedModel.of(workload)
    decode = model.programs.measure(model.decode_shape, workload.whole)
    prefill = model.programs.measure(model.shapes[-1], workload.whole)
    return assembled(model, decode, prefill), CompiledTimes(model, decode, prefill, correction)
