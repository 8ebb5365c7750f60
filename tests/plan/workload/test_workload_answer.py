"""The answer for a workload: against queueing theory and arithmetic where these know it."""

import math
import statistics
from xml.etree import ElementTree

import pytest

from apps.plan.report import LABEL
from apps.plan.simulation.fleet import Fate, SimulatedService, Simulation
from apps.plan.simulation.requests import Trace, TraceRequest, drawn, length
from apps.plan.simulation.timing import HostTimes, StepCost
from apps.plan.workload import chart
from apps.plan.workload.answer import Percentiles, ServedTrace, Slo, moments_of
from apps.plan.workload.planning import WorkloadPlan
from ray_configs.llm import EngineConfig

NO_WORK = HostTimes(0.0, 0.0)


class Constant:
    """Each step takes as long as the next."""

    remembers = 0

    def __init__(self, seconds: float):
        self.seconds = seconds

    def cost(self, decodes: object, chunks: object, since: int) -> StepCost:
        return StepCost(hbm=self.seconds)


def served(workload: Trace, slo: Slo | None = None, batch: int = 1, step_s: float = 1.0, **more: object) -> ServedTrace:
    config = EngineConfig(max_batch_size=batch, max_step_tokens=max(8, batch), speculation="off")
    service = SimulatedService(config, 4000, 100_000, Constant(step_s), NO_WORK, **more)  # type: ignore[arg-type]
    simulation = Simulation(service, workload)
    simulation.run()
    made = ServedTrace.of(simulation, slo)
    assert made.ttft is not None and made.latency is not None
    return made


@pytest.mark.slow
def test_waits_are_those_of_one_server_and_poisson_arrivals() -> None:
    """M/D/1: Pollaczek and Khinchine's mean wait is load * service / (2 * (1 - load)). One slot, one step a request."""
    load = 0.7
    found = served(drawn(length("4"), length("1"), 30_000, rate=load), batch=1)
    assert found.full > 0.2 and found.short_of_pages == 0
    waits = found.ttft.mean - 1.0
    assert waits == pytest.approx(load / (2 * (1 - load)), rel=0.1)
    assert found.shares.hbm == pytest.approx(load, rel=0.02)


def test_littles_law_holds() -> None:
    """Open requests on average are the rate times the time in the system, however they are served."""
    workload = drawn(length("4:40"), length("2:30"), 4000, rate=1.2)
    config = EngineConfig(max_batch_size=16, max_step_tokens=32, speculation="off")
    simulation = Simulation(SimulatedService(config, 4000, 1000, Constant(0.5), NO_WORK, replicas=2), workload)
    fates = simulation.run()
    found = ServedTrace.of(simulation, None)
    moments = moments_of(fates)
    open_on_average = statistics.mean(moment.waiting + moment.running for moment in moments)
    assert open_on_average == pytest.approx(found.requests_per_s * found.latency.mean, rel=0.05)


def test_a_lone_request_takes_its_steps() -> None:
    found = served(Trace([TraceRequest(0.0, 20, 5)]), batch=8, step_s=0.1)
    assert found.ttft.mean == pytest.approx(0.3), "20 tokens in steps of 8 are three steps"
    assert found.tpot.mean == pytest.approx(0.1) and found.seconds == pytest.approx(0.7)
    assert found.tokens_per_s == pytest.approx(5 / 0.7)


def test_what_cannot_be_served_is_counted_by_its_reason() -> None:
    workload = Trace([TraceRequest(0.0, 200_000, 5), *(TraceRequest(1.0, 8, 50) for _ in range(6))])
    found = served(workload, max_waiting=2)
    assert found.refused == {"longer than max_model_len": 1, "max_waiting": 4}
    assert found.requests == 7 and found.ttft.p99 > 0


def test_goodput_counts_both_bounds_and_refusals() -> None:
    fates = [Fate(0, 5, 11, began=began, ended=ended) for began, ended in ((1, 2), (3, 4), (1, 9))]
    fates.append(Fate(0, 5, 11, refused="max_waiting"))
    assert list(map(Slo.parse("ttft=2s,tpot=400ms").kept, fates)) == [True, False, False, False]
    assert list(map(Slo.parse("tpot=400ms").kept, fates)) == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft=2s,tpot=40ms", (2.0, 0.04, 0.99)),
        ("ttft=500ms, share=0.9", (0.5, None, 0.9)),
        ("tpot=0.05", (None, 0.05, 0.99)),
    ],
)
def test_slos(text: str, expected: tuple[float, ...]) -> None:
    slo = Slo.parse(text)
    assert (slo.ttft_s, slo.tpot_s, slo.share) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=fast", "share=0.9", "ttft=-1s", "itl=4ms", "ttft=2s,share=1.5", "ttft=inf"]
)
def test_no_slos(text: str) -> None:
    with pytest.raises(ValueError, match="ttft=2s,tpot=40ms"):
        Slo.parse(text)


def test_percentiles_of_nothing_and_of_something() -> None:
    assert Percentiles.of([math.nan]) is None
    assert str(Percentiles.of([0.001 * n for n in range(1, 101)])) == "p50 51 ms, p90 91 ms, p99 100 ms"


def test_the_chart_is_an_image_of_the_run() -> None:
    """Every browser reads XML; a polyline of a run has a point for each part of it that something arrived in."""
    workload = drawn(length("4:40"), length("2:30"), 500, rate=1.0)
    config = EngineConfig(max_batch_size=4, max_step_tokens=32, speculation="off")
    simulation = Simulation(SimulatedService(config, 4000, 1000, Constant(0.05), NO_WORK), workload)
    moments = moments_of(simulation.run())
    plan = WorkloadPlan(
        asked=None, label=LABEL, model="a<b>&c", slice="v5e:2x2", hosts=1, chips=4, source="x", slo=Slo(ttft_s=1.0),
        served=ServedTrace.of(simulation, Slo(ttft_s=1.0)), estimate=None, floor=None, correction=1.0, spread=None,
        cost=None, steps=None, moments=moments, notes=[],
    )  # fmt: skip
    image = ElementTree.fromstring(chart.drawn(plan))
    assert image.tag.endswith("svg") and "a<b>&c" in image.attrib["aria-label"]
    lines = [each.attrib["d"] for each in image if each.tag.endswith("path") and each.attrib.get("stroke-width")]
    assert len(lines) == 4 and lines[0].count("L") == len(moments) - 1
    assert sum(moment.arrived for moment in moments) == 500
