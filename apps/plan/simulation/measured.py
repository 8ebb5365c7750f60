"""Measures step times on this machine, by an engine that serves requests made for it."""

import random
from collections.abc import Callable

from apps.llm.engine.engine import JaxEngine
from apps.plan.simulation.fitted import FittedTimes, fit, host_times
from apps.plan.simulation.recording import TimedDevices, serve
from apps.plan.simulation.requests import Trace, TraceRequest
from apps.plan.simulation.timing import HostTimes

ANSWER, REQUESTS = 32, 24
"""Tokens of a longest answer; requests for each number that runs at a time."""


def measure(
    engine: JaxEngine, devices: TimedDevices, tell: Callable[[str], None] = lambda _: None
) -> tuple[FittedTimes, HostTimes]:
    """Step times of an engine that serves 1, 2, 4, ... requests at a time, to its full batch. Takes some seconds."""
    batch, at_a_time = engine.capabilities.max_batch_size, 1
    while True:
        tell(f"timing steps of {at_a_time} requests at a time")
        serve(engine, ramp(engine, at_a_time), f"ramp {at_a_time}")
        if at_a_time >= batch:
            break
        at_a_time = min(2 * at_a_time, batch)
    steps = [step for executor in devices.executors for step in executor.steps]
    return fit(steps), host_times(steps)


def ramp(engine: JaxEngine, at_a_time: int) -> Trace:
    """Requests of all lengths, so many at a time."""
    dice, longest = random.Random(at_a_time), min(engine.capabilities.max_model_len, engine.capabilities.cache_tokens)
    arrivals = []
    for _ in range(max(REQUESTS, 2 * at_a_time)):
        answer = dice.randint(2, min(ANSWER, longest // 2))
        prompt = round((longest - answer) ** dice.random())
        arrivals.append(TraceRequest(0.0, max(1, prompt), answer))
    return Trace(arrivals, concurrency=at_a_time)
