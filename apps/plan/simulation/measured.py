"""Measures step times on this machine, by an engine that serves requests made for it."""

import random
import time
from collections.abc import Callable

from apps.llm.engine.engine import JaxEngine
from apps.plan.simulation.fitted import FittedTimes, fit, host_times
from apps.plan.simulation.recording import TimedDevices, TimedStep, serve
from apps.plan.simulation.requests import Trace, TraceRequest
from apps.plan.simulation.timing import HostTimes

REQUESTS = 24
"""For each number that runs at a time, at least."""
TOGETHER = 32
"""Tokens that as many requests decode together."""
LONGEST_ANSWER = 128
"""Longer answers only repeat what is known."""


def measure(
    engine: JaxEngine, devices: TimedDevices, like: Trace | None = None, tell: Callable[[str], None] = lambda _: None
) -> tuple[FittedTimes, HostTimes]:
    """Step times of an engine that serves 1, 2, 4, ... requests at a time, to its full batch. Takes a minute or so.

    Args:
        like: a trace with requests of about these lengths.
    """
    steps = timed(engine, devices, like, tell)
    return fit(steps), host_times(steps)


def timed(
    engine: JaxEngine, devices: TimedDevices, like: Trace | None = None, tell: Callable[[str], None] = lambda _: None
) -> list[TimedStep]:
    """The steps of such an engine, of each of its devices one after another."""
    for executor in devices.executors:
        executor.steps.clear()
    batch, at_a_time = engine.capabilities.max_batch_size, 1
    while True:
        tell(f"timing steps of {at_a_time} requests at a time")
        serve(engine, ramp(engine, at_a_time, like), f"ramp {at_a_time} {time.monotonic_ns()}")
        if at_a_time >= batch:
            return [step for executor in devices.executors for step in executor.steps]
        at_a_time = min(2 * at_a_time, batch)


def ramp(engine: JaxEngine, at_a_time: int, like: Trace | None = None) -> Trace:
    """Requests to time, so many at a time: short prompts that decode together, long ones, and all lengths.

    Args:
        like: a trace whose lengths to take; without one, up to a quarter of the longest.
    """
    dice = random.Random(at_a_time)
    longest = min(engine.capabilities.max_model_len, engine.capabilities.cache_tokens)
    known = [(each.prompt, each.answer) for each in like.arrivals] if like else [(longest // 4, LONGEST_ANSWER)]
    most = min(max(prompt for prompt, _ in known), longest - TOGETHER)
    lengths = []
    for prompt in (min(16, most), most):
        # The first decodes until the last one's prompt is computed, and all of them then.
        prefilling = at_a_time * prompt // max(1, engine.config.max_step_tokens - at_a_time)
        lengths += [(min(prompt, longest - TOGETHER - prefilling), TOGETHER + prefilling)] * at_a_time
    for number in range(max(REQUESTS, 2 * at_a_time)):
        prompt, answer = (
            dice.choice(known) if like else (dice.randint(1, longest // 4), dice.randint(2, LONGEST_ANSWER))
        )
        if number % 2:  # what a prefix cache leaves of a prompt is short
            prompt = round(prompt ** dice.random())
        answer = max(2, min(answer, LONGEST_ANSWER, longest // 2))
        lengths.append((min(prompt, longest - answer), answer))
    return Trace([TraceRequest(0.0, *each) for each in lengths], concurrency=at_a_time)
