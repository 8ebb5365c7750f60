"""Finds the cheapest slice that holds a config and meets a time per token.

Arithmetic rules out most slices: weights and KV cache do not fit, or cannot be read in the time. The rest are compiled,
cheapest first, until one passes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import Field

from apps.arrays.layout import Devices, Layout
from apps.llm.engine.execute.layout_choice import Cost, DeviceWeights, possible
from apps.llm.engine.model.architecture import Architecture
from apps.plan import topology
from apps.plan.llm import architectures
from apps.plan.llm.planner import PlannedModel, Workload, plan, unread
from apps.plan.llm.report import LLMPlan
from apps.plan.report import LABEL, Part
from ray_configs.tpu import GENERATIONS, TpuSlice
from ray_configs.tpu.peaks import Peaks


class Candidate(Part):
    """A slice and a mesh over it."""

    slice: str
    data_parallel: int
    tensor_parallel: int
    chips: int
    dollars_an_hour: float | None = Field(description="chips times the price given; None: none was given")
    least_ms: float = Field(description="to read the weights and the live KV cache once: no step is shorter")
    arithmetic_ms: float = Field(description="that, or the products, and the exchange between devices")
    verdict: str
    plan: LLMPlan | None = None


class Found(Part):
    label: str = LABEL
    wanted_ms: float | None
    chosen: list[str] = Field(
        description="the cheapest that fits and is fast enough; one of each generation if prices are missing"
    )
    candidates: list[Candidate] = Field(description="those that fit by arithmetic, cheapest first; then the others")


@dataclass(frozen=True)
class Criteria:
    """Which slices to consider, and what they must achieve."""

    generations: tuple[str, ...]
    most_chips: int
    ms_per_token: float | None
    prices: Mapping[str, float]
    """Dollars per chip-hour by generation. Generations are compared with each other only if all have a price."""


def search(workload: Workload, criteria: Criteria, tell: Callable[[str], None] = lambda _: None) -> Found:
    """Compiles candidates, cheapest first, until one passes: overall, or in each generation if prices are missing.

    Raises:
        ValueError: a generation is unknown.
    """
    for name in (*criteria.generations, *criteria.prices):
        if name not in GENERATIONS:
            raise ValueError(f"no TPU generation {name!r}; choose from {', '.join(GENERATIONS)}")
    priced = all(name in criteria.prices for name in criteria.generations)
    fitting: list[tuple[Candidate, Workload]] = []
    refused: list[Candidate] = []
    arch = architectures.find(workload.config).arch
    for slice, devices, layout in layouts(arch, criteria, workload.config.expert_parallel):
        update = {"data_parallel": layout.data, "tensor_parallel": layout.tensor}
        there = replace(workload, slice=slice, config=workload.config.model_copy(update=update))
        found = by_arithmetic(there, criteria, layout, devices)
        if found is not None and found.verdict:
            refused.append(found)
        elif found is not None:
            fitting.append((found, there))
    fitting.sort(key=lambda pair: (pair[0].dollars_an_hour or 0.0, pair[0].chips, pair[0].arithmetic_ms))
    chosen: dict[str, str] = {}
    tried: list[Candidate] = []
    for candidate, there in fitting:
        group = "all" if priced else there.slice.generation
        if group in chosen:
            why = "slower by arithmetic" if chosen[group] == candidate.slice else "more expensive"
            tried.append(candidate.model_copy(update={"verdict": f"not compiled: {why} than the one chosen"}))
            continue
        tell(f"compiling for {candidate.slice}, data {candidate.data_parallel} x tensor {candidate.tensor_parallel}")
        judged = _compiled(candidate, there, criteria)
        tried.append(judged)
        if judged.verdict == GOOD:
            chosen[group] = judged.slice
    return Found(wanted_ms=criteria.ms_per_token, chosen=list(chosen.values()), candidates=tried + refused)


GOOD = "fits and is fast enough"


def layouts(
    arch: Architecture, criteria: Criteria, expert_parallel: int | None = None
) -> Iterator[tuple[TpuSlice, Devices, Layout]]:
    """The slices that Ray can place, with the meshes over which the engine can split the model on each.

    On a single host chips may stay idle if the model does not split over all; in a multi-host slice all take part. If
    a topology comes with two sizes of host, only the larger is tried: the compiled program is the same.
    """
    for name in criteria.generations:
        for topology_name in GENERATIONS[name].topologies:
            slice = TpuSlice(name, topology_name, GENERATIONS[name].machines_for(topology_name)[0].name)
            if slice.ray_refusal or slice.chips > criteria.most_chips:
                continue
            devices = Devices(slice.chips * (2 if name in TWO_DEVICES else 1), slice.hosts)
            yield from ((slice, devices, layout) for layout in possible(arch, devices, expert_parallel))
            if slice.single_host:
                fewer = (devices.count // 2, devices.count // 4)
                yield from ((slice, devices, Layout(1, tensor)) for tensor in fewer if tensor)


TWO_DEVICES = ("v3", "v4", "7x")
"""Generations whose chips the compiler sees as two devices."""


def by_arithmetic(workload: Workload, criteria: Criteria, layout: Layout, devices: Devices) -> Candidate | None:
    """A candidate, with a verdict if arithmetic alone rules it out; None if the model does not split this way."""
    slice = workload.slice
    try:
        sized = PlannedModel.of(workload)
    except (ValueError, topology.NoCompiler):
        return None
    config, tensor = sized.config, layout.tensor
    pages = config.max_batch_size * -(-sized.context // config.page_size) + 1
    weights, cache = sized.programs.weight_bytes(), pages * sized.programs.page_bytes()
    peaks = Peaks.of(slice, len(topology.devices(slice)))
    tables = DeviceWeights.of(config, sized.arch, tensor)
    unused = tables.stored - tables.read + unread(sized, sized.decode_shape)
    least = (weights - unused + cache) / peaks.hbm_bytes_per_s * 1e3
    verdict = ""
    if weights + cache / config.memory_fraction > sized.usable:
        need = (weights + cache / config.memory_fraction) / sized.usable
        verdict = f"does not fit: needs {need:.2g} times the HBM"
    elif criteria.ms_per_token is not None and least > criteria.ms_per_token:
        verdict = f"too slow: {least:.1f} ms at least"
    price = criteria.prices.get(slice.generation)
    return Candidate(
        slice=str(slice),
        data_parallel=layout.data,
        tensor_parallel=tensor,
        chips=slice.chips,
        dollars_an_hour=None if price is None else price * slice.chips,
        least_ms=least,
        arithmetic_ms=Cost.of(workload.config, sized.arch, layout, devices, slice).step_s * 1e3,
        verdict=verdict,
    )


def _compiled(candidate: Candidate, workload: Workload, criteria: Criteria) -> Candidate:
    try:
        made = plan(workload)
    except Exception as error:  # the compiler refuses some shapes; the next slice may work
        text = str(error).strip().splitlines()[0]
        return candidate.model_copy(update={"verdict": f"the compiler refuses: {text[:160]}"})
    verdict = GOOD
    if not made.memory.fits or made.batch < workload.config.max_batch_size:
        verdict = f"holds {made.batch} sequences of {made.context} tokens, not {workload.config.max_batch_size}"
    elif criteria.ms_per_token is not None and made.estimate.time_per_token_ms > criteria.ms_per_token:
        verdict = f"too slow: an estimated {made.estimate.time_per_token_ms:.1f} ms"
    return candidate.model_copy(update={"verdict": verdict, "plan": made})
