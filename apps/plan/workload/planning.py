"""Plans a workload: what serves it on one slice, or which slices and how many replicas would."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import Field

from apps.plan.calibration import correction, spread
from apps.plan.llm.planner import Workload as StepWorkload
from apps.plan.llm.report import TOKENS_AN_HOUR, LLMPlan
from apps.plan.llm.search import Criteria, by_arithmetic, layouts
from apps.plan.report import LABEL, Part
from apps.plan.simulation.compiled import CompiledTimes, compile_times
from apps.plan.simulation.fleet import SimulatedService, Simulation
from apps.plan.simulation.requests import Trace
from apps.plan.simulation.timing import host_times
from apps.plan.workload.answer import Moment, ServedTrace, Slo, moments_of
from ray_configs.llm import EngineConfig, LLMConfig

MOST_REPLICAS = 256
TRIED = 3
"""Slices of a generation that are compiled before it is given up."""
ALL_STEPS = 20_000
"""Requests up to which the floor and the plain estimate are simulated too."""
Tell = Callable[[str], None]


class Again(Part):
    """What to ask for the same plan again: `podslice plan` of the plan's JSON."""

    config: str
    options: dict[str, Any] = Field(description="by their names with underscores")
    trace: str = Field(description="SHA-256 of its file; empty: there is none")
    versions: dict[str, str] = Field(description="of the packages that the result depends on")


@dataclass(frozen=True)
class Asked:
    """A workload, and what is wanted of whatever serves it."""

    workload: Trace
    replicas: int | None = None
    slo: Slo | None = None
    prices: Mapping[str, float] = field(default_factory=dict)
    """Dollars for a chip and hour, by generation."""
    again: Again | None = None


class Dollars(Part):
    chips: int
    dollars_an_hour: float
    dollars_a_million_tokens: float | None = Field(description="of answers; None: there were none")


class WorkloadPlan(Part):
    """A workload on a service, computed."""

    asked: Again | None
    label: str
    model: str
    slice: str | None
    hosts: int
    chips: int = Field(description="of all replicas")
    source: str = Field(description="of the requests")
    slo: Slo | None
    served: ServedTrace = Field(description="with corrected step times")
    estimate: ServedTrace | None = Field(description="with the estimate's step times as they are")
    floor: ServedTrace | None = Field(description="if every step took only its longest resource's time at peak")
    correction: float = Field(description="of a step's estimated time, by the calibration page")
    spread: tuple[float, float] | None = Field(description="of published figures over estimates, as corrected")
    cost: Dollars | None
    steps: LLMPlan | None = Field(description="the programs' own plan")
    moments: list[Moment] = Field(description="the run, in as many parts of the same length")
    notes: list[str]


class WorkloadSearch(Part):
    """The cheapest service for a workload in each generation."""

    asked: Again | None
    label: str = LABEL
    source: str
    slo: Slo
    found: list[WorkloadPlan] = Field(description="that meet the SLO, the cheapest first")
    refused: dict[str, str] = Field(description="generation or slice: why not")


def service(config: LLMConfig, compiled: LLMPlan, times: CompiledTimes, replicas: int) -> SimulatedService:
    """What a config deploys, on so many replicas of its slice."""
    routers = _routers(config, replicas)
    return SimulatedService(
        config=times.model.config,
        pages=compiled.pages,
        max_len=times.model.max_len,
        times=times,
        host=host_times(text=not routers),
        replicas=replicas,
        dp_ranks=compiled.mesh["data"],
        max_waiting=config.max_waiting * (routers or replicas),
        fronts=routers or replicas,
    )


def _routers(config: LLMConfig, replicas: int) -> int:
    """How many the config has with so many replicas."""
    return config.model_copy(update={"min_replicas": replicas, "max_replicas": replicas}).router_count


def plan_workload(config: LLMConfig, asked: Asked, tell: Tell = lambda _: None) -> WorkloadPlan:
    """Compile a config's programs for its slice and run the workload on them. Raises what `PlannedModel.of` does."""
    assert config.slice is not None
    tell(f"compiling the programs of {config.model} for {config.slice}")
    compiled, times = compile_times(
        StepWorkload(engine_config(config), config.slice), correction(config.slice.generation)
    )
    return _planned(config, asked, compiled, times, asked.replicas or config.min_replicas or 1, tell)


def _planned(
    config: LLMConfig, asked: Asked, compiled: LLMPlan, times: CompiledTimes, replicas: int, tell: Tell
) -> WorkloadPlan:
    assert config.slice is not None

    def served(times: CompiledTimes) -> ServedTrace:
        return run(service(config, compiled, times, replicas), asked, tell)[0]

    own, moments = run(service(config, compiled, times, replicas), asked, tell)
    also = len(asked.workload.arrivals) <= ALL_STEPS
    chips, price = replicas * config.slice.chips, asked.prices.get(config.slice.generation)
    return WorkloadPlan(
        asked=asked.again,
        label=LABEL,
        model=config.served_name,
        slice=str(config.slice),
        hosts=config.slice.hosts,
        chips=chips,
        source=asked.workload.source,
        slo=asked.slo,
        served=own,
        estimate=served(replace(times, correction=1.0)) if also else None,
        floor=served(replace(times, correction=1.0, at_floor=True)) if also else None,
        correction=times.correction,
        spread=spread(config.slice.generation),
        cost=None if price is None else _cost(chips, price, own),
        steps=compiled,
        moments=moments,
        notes=notes(config, times.model.config),
    )


def _cost(chips: int, price: float, served: ServedTrace) -> Dollars:
    tokens_an_hour = served.tokens_per_s * 3600
    return Dollars(
        chips=chips,
        dollars_an_hour=chips * price,
        dollars_a_million_tokens=chips * price * TOKENS_AN_HOUR / tokens_an_hour if tokens_an_hour else None,
    )


def run(service: SimulatedService, asked: Asked, tell: Tell = lambda _: None) -> tuple[ServedTrace, list[Moment]]:
    """Simulate a workload on a service."""
    total = len(asked.workload.arrivals)
    simulation = Simulation(service, asked.workload, lambda done: tell(f"{done:,} of {total:,} requests simulated"))
    simulation.run()
    return ServedTrace.of(simulation, asked.slo), moments_of(simulation.fates)


def notes(config: LLMConfig, engine: EngineConfig) -> list[str]:
    """What the simulation leaves out, of what this config has."""
    found = []
    if engine.speculation != "off":
        found.append("Drafts (speculation) are left out: what they gain hangs on the text.")
    if engine.prefix_cache_host_gib:
        found.append("The prefix cache's second tier, in host memory, is left out.")
    if config.max_replicas > config.min_replicas:
        found.append("The number of replicas stays as it is: scaling is not simulated.")
    return found


def search_workload(config: LLMConfig, asked: Asked, criteria: Criteria, tell: Tell) -> WorkloadSearch:
    """In each generation, the cheapest slice and number of replicas that meet the SLO.

    Slices that hold the model by arithmetic are compiled, those of the fewest chips first, a few in each generation.
    """
    assert asked.slo is not None
    found, refused = list[WorkloadPlan](), dict[str, str]()
    for generation in criteria.generations:
        best: WorkloadPlan | None = None
        tried = 0
        for candidate, step_workload in _candidates(config, replace(criteria, generations=(generation,))):
            there = config.model_copy(update={**step_workload.config.model_dump(), "slice": step_workload.slice})
            if tried == TRIED or (best is not None and step_workload.slice.chips >= best.chips):
                break
            tried += 1
            tell(f"compiling the programs of {config.model} for {candidate}")
            try:
                compiled, times = compile_times(step_workload, correction(generation))
                made = _fewest(there, asked, compiled, times, best, tell)
            except Exception as error:  # the compiler refuses some shapes; the next slice may work
                refused[candidate] = str(error).strip().splitlines()[0][:160]
                continue
            if made is None:
                refused[candidate] = f"does not meet {asked.slo} with {MOST_REPLICAS} replicas, or fewer for less"
            else:
                best = made
        if best is not None:
            found.append(best)
        elif not tried:
            refused[generation] = f"no slice of at most {criteria.most_chips} chips holds the model"
    found.sort(key=lambda plan: (plan.cost.dollars_an_hour if plan.cost else 0.0, plan.chips))
    return WorkloadSearch(asked=asked.again, source=asked.workload.source, slo=asked.slo, found=found, refused=refused)


def _candidates(config: LLMConfig, criteria: Criteria) -> Iterator[tuple[str, StepWorkload]]:
    from apps.plan.llm import architectures

    engine, fitting = engine_config(config), []
    for slice, devices, layout in layouts(architectures.find(engine).arch, criteria, engine.expert_parallel):
        update = {"data_parallel": layout.data, "tensor_parallel": layout.tensor}
        there = StepWorkload(engine.model_copy(update=update), slice)
        found = by_arithmetic(there, criteria, layout, devices)
        if found is not None and not found.verdict:
            name = f"{found.slice}, data {found.data_parallel} x tensor {found.tensor_parallel}"
            fitting.append((found.chips, found.arithmetic_ms, name, there))
    yield from ((name, there) for _, _, name, there in sorted(fitting, key=lambda each: each[:3]))


def _fewest(
    config: LLMConfig, asked: Asked, compiled: LLMPlan, times: CompiledTimes, best: WorkloadPlan | None, tell: Tell
) -> WorkloadPlan | None:
    """The fewest replicas that meet the SLO, if they have fewer chips than `best`."""
    assert config.slice is not None
    most = MOST_REPLICAS if best is None else (best.chips - 1) // config.slice.chips

    def meets(replicas: int) -> bool:
        return bool(run(service(config, compiled, times, replicas), asked, tell)[0].meets)

    if not most:
        return None
    low, high = 0, 1
    while not meets(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return _planned(config, asked, compiled, times, high, tell)


def engine_config(config: LLMConfig) -> EngineConfig:
    return EngineConfig(**{field: getattr(config, field) for field in EngineConfig.model_fields})


def plan_measured(config: LLMConfig, asked: Asked, tell: Tell = lambda _: None) -> WorkloadPlan:
    """The same for a config without a slice: its steps are timed on this machine first, by an engine that serves."""
    from apps.plan.simulation import measured, recording

    tell(f"loading {config.model}")
    replicas = asked.replicas or config.min_replicas or 1
    routers = _routers(config, replicas)
    engine, devices = recording.load(engine_config(config))
    try:
        times, host = measured.measure(engine, devices, asked.workload, tell)
        sizes, loop = engine.capabilities, engine.loops[0]
        there = SimulatedService(
            config=loop.stepper.config,
            pages=loop.executor.pages,
            max_len=sizes.max_model_len,
            times=times,
            host=replace(host_times(text=not routers), step_s=host.step_s, row_s=host.row_s),
            replicas=replicas,
            dp_ranks=len(engine.loops),
            max_waiting=config.max_waiting * (routers or replicas),
            fronts=routers or replicas,
        )
    finally:
        engine.shutdown()
    served, moments = run(there, asked, tell)
    return WorkloadPlan(
        asked=asked.again,
        label="computed from step times measured on this machine, with the engine alone on it",
        model=config.served_name,
        slice=None,
        hosts=1,
        chips=0,
        source=asked.workload.source,
        slo=asked.slo,
        served=served,
        estimate=None,
        floor=None,
        correction=1.0,
        spread=None,
        cost=None,
        steps=None,
        moments=moments,
        notes=[*notes(config, there.config), f"A step's fitted time is off by {times.error:.0%} in the median."],
    )
