"""Engines on a virtual clock against the engine's own `Stepper`, run by hand on the same clock with equal step times.

The stepper plans real requests with real tokens and page names; its executor only says when a step would end. So every
time, hit and preemption of the simulation has the product's own turn as its oracle.
"""

import math
import random
from collections.abc import Sequence as Ids
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from apps.llm.api import Sampling, TokenOutput, TokenRequest
from apps.llm.engine.executor_protocol import Tokens, fitting, step_shapes
from apps.llm.engine.schedule.answer import Answer
from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.engine.schedule.stepper import Stepper
from apps.plan.simulation.fleet import SimulatedService, Simulation
from apps.plan.simulation.rank import SimulatedRank
from apps.plan.simulation.requests import Trace, TraceRequest
from apps.plan.simulation.timing import HostTimes, StepCost
from ray_configs.llm import EngineConfig

PAGE, BLOCK = 8, 16
VOCAB = 2**31 - 2


class Linear:
    """Step times that say which step it was."""

    remembers = 2

    def cost(self, decodes: Ids[int], chunks: Ids[tuple[int, int]], since: int) -> StepCost:
        attended = sum(decodes) + sum(tokens * length for tokens, length in chunks)
        tokens = len(decodes) + sum(tokens for tokens, _ in chunks)
        slower = 0.0 if chunks else (0.003, 0.001, 0.0)[since]
        return StepCost(hbm=0.004 + 1e-6 * attended + slower, compute=1e-5 * tokens)


class Clocked:
    """An executor that takes a step's time on the test's clock."""

    skips_padding = False
    compiles_after_ready = programs_compiled = host_pages = prefix_states = 0

    def __init__(self, config: EngineConfig, pages: int, host: HostTimes):
        self.arch, self.pages, self.host = SimpleNamespace(vocab_size=VOCAB), pages, host
        self.shapes = step_shapes(config, 512)
        self.now = self.free = 0.0
        self.since = 2

    def shape_for(self, tokens: int, seqs: int, reads: bool = False) -> Any:
        return fitting(self.shapes, tokens, seqs)

    def launch(self, step: Any, constraints: Any = None, readout: Any = None) -> tuple[float, Tokens]:
        count = int(step._part("num_seqs")[0])
        lengths = step._part("kv_lens")[:count].tolist()
        tokens = np.diff(step._part("q_starts")[: count + 1]).tolist()
        decodes = [length for length, of_step in zip(lengths, tokens) if of_step == 1]
        chunks = [(of_step, length) for length, of_step in zip(lengths, tokens) if of_step > 1]
        self.now += self.host.step_s + self.host.row_s * count
        self.free = max(self.now, self.free) + Linear().cost(decodes, chunks, self.since).seconds
        self.since = 0 if chunks else min(self.since + 1, 2)
        ids = np.zeros(step.shape.seqs, np.int32)
        ids[:count] = step._settings[2, :count] * 1000 + lengths  # its own tokens: nobody else's pages are like it
        return self.free, Tokens(ids, np.zeros(0), np.zeros(0), np.zeros(0))

    def read(self, launched: tuple[float, Tokens]) -> Tokens:
        self.now = max(self.now, launched[0])
        return launched[1]

    def clean(self, pages: Any) -> None: ...


def tokens_of(arrival: TraceRequest, number: int) -> list[int]:
    """Equal blocks are equal tokens; the rest is the request's own."""
    shared = [1 + block * BLOCK + i for block in arrival.blocks for i in range(BLOCK)]
    own = [10**6 * (number + 1) + i for i in range(arrival.prompt)]
    return [*shared, *own[len(shared) :]][: arrival.prompt]


def by_stepper(
    config: EngineConfig, pages: int, arrivals: list[TraceRequest], host: HostTimes
) -> tuple[list[Any], Any]:
    """(entered, began, ended, cached tokens) of each request, by the engine's own turns; and the stepper."""
    executor = Clocked(config, pages, host)
    stepper: Stepper[Any] = Stepper(config, executor, clock=lambda: int(executor.now * 1e9) + 1)  # type: ignore[arg-type]
    found = [[math.nan, math.nan, 0] for _ in arrivals]

    def sink(outputs: list[TokenOutput]) -> None:
        for output in outputs:
            own = found[output.request]
            if not output.token_ids:  # it has a slot, for the first time
                own[2] = output.cached_tokens
            if output.token_ids and math.isnan(own[0]):
                own[0] = executor.now
            if output.finish_reason is not None:
                own[1] = executor.now

    coming = list(enumerate(arrivals))
    while coming or not stepper.idle:
        if stepper.idle:
            executor.now = max(executor.now, coming[0][1].at_s)
        while coming and coming[0][1].at_s <= executor.now:
            number, arrival = coming.pop(0)
            sampling = Sampling(seed=number, temperature=0.0, ignore_eos=True)
            limit = arrival.prompt + arrival.answer
            request = TokenRequest(
                id=number, prompt_ids=tuple(tokens_of(arrival, number)), limit=limit, sampling=sampling
            )
            seq = Sequence(request, number, limit, list(request.prompt_ids), arrival.prompt)
            stepper.add([(seq, Answer(seq, VOCAB, ()), sink)])
        stepper.step()
    return found, stepper


def workload(seed: int, rate: float) -> list[TraceRequest]:
    dice = random.Random(seed)
    at, arrivals = 0.0, []
    for _ in range(60):
        at += dice.expovariate(rate)
        blocks = tuple(range(dice.choice([0, 1, 3]))) + ((100 + dice.randrange(3),) if dice.random() < 0.5 else ())
        arrivals.append(TraceRequest(at, len(blocks) * BLOCK + dice.randint(1, 90), dice.randint(1, 70), blocks, BLOCK))
    return [*arrivals[:1], *sorted(arrivals[1:], key=lambda arrival: arrival.at_s)]


CASES = {
    "idle": (0, 2.0, 300, HostTimes(0.0005, 0.00001)),
    "busy": (1, 30.0, 300, HostTimes(0.0005, 0.00001)),
    "short of pages": (2, 30.0, 34, HostTimes(0.0005, 0.00001)),
    "the host is slower": (3, 30.0, 300, HostTimes(0.02, 0.0001)),
    "as fast as each other": (4, 15.0, 120, HostTimes(0.004, 0.0001)),
}


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_it_takes_the_times_of_the_engines_own_turns(
    case: str, single: bool, reuse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, rate, pages, host = CASES[case]
    config = EngineConfig(
        max_batch_size=6, max_step_tokens=48, page_size=PAGE, max_model_len=512, speculation="off", prefix_cache=reuse
    )
    arrivals = workload(seed, rate)
    expected, stepper = by_stepper(config, pages, arrivals, host)
    if single:
        monkeypatch.setattr(SimulatedRank, "_leap", None)
        monkeypatch.setattr("apps.plan.simulation.rank.steady_steps", lambda _: 0)
    simulation = Simulation(SimulatedService(config, pages, 512, Linear(), host), Trace(arrivals))
    fates = simulation.run()
    rank = simulation.ranks[0]
    assert [fate.cached for fate in fates] == [cached for _, _, cached in expected]
    assert [fate.began for fate in fates] == pytest.approx([began for began, _, _ in expected], abs=1e-9)
    assert [fate.ended for fate in fates] == pytest.approx([ended for _, ended, _ in expected], abs=1e-9)
    assert rank.steps == stepper._steps
    assert rank.scheduler.preemptions == stepper.scheduler.preemptions
    assert (rank.scheduler.preemptions > 0) is (case == "short of pages")
    assert not reuse or sum(fate.cached for fate in fates) > 500
