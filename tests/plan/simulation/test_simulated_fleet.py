"""Several replicas and DP ranks on a virtual clock, behind the router's own choice."""

import math
from collections import Counter
from collections.abc import Sequence as Ids
from itertools import pairwise

import pytest

from apps.plan.simulation.fleet import Fate, SimulatedService, Simulation
from apps.plan.simulation.requests import Trace, TraceRequest, drawn, length
from apps.plan.simulation.timing import HostTimes, StepCost
from ray_configs.llm import EngineConfig

CONFIG = EngineConfig(max_batch_size=4, max_step_tokens=64, page_size=16, speculation="off")


class PerToken:
    remembers = 0

    def cost(self, decodes: Ids[int], chunks: Ids[tuple[int, int]], since: int) -> StepCost:
        return StepCost(hbm=0.01, compute=1e-4 * (len(decodes) + sum(tokens for tokens, _ in chunks)))


def simulation(trace: Trace, host: HostTimes = HostTimes(1e-4, 1e-5), **more: int) -> Simulation:  # noqa: B008
    return Simulation(SimulatedService(CONFIG, 400, 2000, PerToken(), host, **more), trace)


def open_at_most(fates: list[Fate]) -> int:
    changes = sorted(change for fate in fates for change in ((fate.arrived, 1), (fate.ended, -1)))
    count = most = 0
    for _, change in changes:
        count += change
        most = max(most, count)
    return most


@pytest.mark.parametrize(("replicas", "dp_ranks"), [(1, 1), (3, 1), (1, 4), (2, 2)])
def test_so_many_at_a_time_are_open_and_all_are_served(replicas: int, dp_ranks: int) -> None:
    run = simulation(drawn(length("8:90"), length("1:40"), 300, concurrency=7), replicas=replicas, dp_ranks=dp_ranks)
    fates = run.run()
    assert len(fates) == 300 and not any(fate.refused or math.isnan(fate.ended) for fate in fates)
    assert open_at_most(fates) == 7
    assert all(fate.arrived <= fate.entered < fate.began <= fate.ended for fate in fates)
    assert all(rank.idle and not rank.scheduler.pool.used for rank in run.ranks)
    if replicas * dp_ranks == 1:  # else ends of one are known up to a step before those of another
        assert [fate.arrived for fate in fates] == sorted(fate.arrived for fate in fates)


def test_the_same_requests_have_the_same_fates() -> None:
    trace = drawn(length("8:90"), length("1:40"), 200, rate=30.0)
    first, second = simulation(trace, replicas=2).run(), simulation(trace, replicas=2).run()
    assert first == second


def test_requests_go_where_their_prefix_is() -> None:
    """Eight prompts of 160 tokens, over and over: each replica computes a share of them once, the rest are found."""
    requests = [TraceRequest(0.2 * n, 170, 4, (n % 8, 100 + n % 8), 80) for n in range(400)]
    run = simulation(Trace(requests), replicas=4)
    fates = run.run()
    where = {kind: {fate.replica for number, fate in enumerate(fates) if number % 8 == kind} for kind in range(8)}
    assert sum(fate.cached for fate in fates) / sum(fate.prompt for fate in fates) > 0.85
    assert max(Counter(fate.replica for fate in fates).values()) < 250, "and no replica has most of them"
    assert sum(len(replicas) for replicas in where.values()) < 8 * 3


def test_a_session_goes_on_after_its_answer_and_finds_what_was_said() -> None:
    turns = [
        TraceRequest(0.0, 100, 60, session="a"),
        TraceRequest(0.0, 200, 10, session="a", after_s=2.0, goes_on=True),
        TraceRequest(0.0, 250, 10, session="a", after_s=0.5, goes_on=True),
        TraceRequest(0.1, 50, 300, session="b"),
    ]
    run = simulation(Trace(turns), replicas=2)
    fates = sorted((fate for fate in run.run() if fate.prompt != 50), key=lambda fate: fate.arrived)
    assert [fate.prompt for fate in fates] == [100, 200, 250]
    gaps = [after.arrived - before.ended for before, after in pairwise(fates)]
    assert gaps == pytest.approx([2.0, 0.5], abs=1e-3)
    # All full pages of what was said, but for the last token, which was never computed.
    assert [fate.cached for fate in fates] == [0, 159 // 16 * 16, 209 // 16 * 16]
    assert len({fate.replica for fate in fates}) == 1


def test_dp_ranks_of_a_process_share_its_interpreter() -> None:
    """With 12 ms of host work for a step of 10 ms, four ranks take 48 ms: what one interpreter can do, not four."""
    trace = drawn(length("8"), length("100"), 16, concurrency=16)
    host = HostTimes(step_s=0.012, row_s=0.0)
    alone = simulation(drawn(length("8"), length("100"), 4, concurrency=4), host).run()
    together = simulation(trace, host, dp_ranks=4).run()
    apart = simulation(trace, host, replicas=4).run()
    tpots = [sum(fate.tpot for fate in fates) / len(fates) for fates in (alone, apart, together)]
    assert tpots == pytest.approx([0.012, 0.012, 0.048], rel=0.05)


def test_text_in_the_same_process_holds_the_engine_up_once_it_takes_longer_than_the_step() -> None:
    trace = drawn(length("8"), length("100"), 4, concurrency=4)
    hidden = simulation(trace, HostTimes(1e-3, 0.0, token_s=1e-3)).run()
    slower = simulation(trace, HostTimes(1e-3, 0.0, token_s=10e-3)).run()
    assert hidden[0].tpot == pytest.approx(0.0104, rel=0.05), "the step's own time"
    assert slower[0].tpot == pytest.approx(0.041, rel=0.05), "four tokens' text, and the engine's own millisecond"
