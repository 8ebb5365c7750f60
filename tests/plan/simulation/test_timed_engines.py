"""Engines that are timed, and those that sleep: what they count, by the engine's own statistics."""

from collections.abc import Sequence as Ids

import pytest

from apps.llm.engine.engine import JaxEngine
from apps.llm.router.fleet import Fleet
from apps.llm.text.model_files import tokenizer_of
from apps.plan.simulation import recording
from apps.plan.simulation.fleet import SimulatedService, Simulation
from apps.plan.simulation.requests import Trace, TraceRequest, drawn, length
from apps.plan.simulation.sleeping import SleepingDevices
from apps.plan.simulation.timing import HostTimes, StepCost
from ray_configs.llm import EngineConfig

CONFIG = EngineConfig(max_batch_size=4, max_step_tokens=64, max_model_len=256, speculation="off")


class Slow:
    remembers = 0

    def cost(self, decodes: Ids[int], chunks: Ids[tuple[int, int]], since: int) -> StepCost:
        return StepCost(compute=0.002)


@pytest.mark.slow
def test_every_step_of_a_timed_engine_is_noted(compile_cache: str) -> None:
    engine, devices = recording.load(CONFIG.model_copy(update={"compile_cache": compile_cache}))
    try:
        before = engine.stats()
        devices.executors[0].steps.clear()
        trace = drawn(length("3:150"), length("1:20"), 12, concurrency=4)
        fates = recording.serve(engine, trace, "one")
        after, steps = engine.stats(), list(devices.executors[0].steps)
        again = recording.serve(engine, trace, "another")
    finally:
        engine.shutdown()
    assert len(steps) == after.steps - before.steps
    tokens = sum(len(step.decodes) + sum(tokens for tokens, _ in step.chunks) for step in steps)
    assert tokens == sum(fate.prompt + fate.answer - 1 for fate in fates), "all but the last token are computed"
    assert after.prompt_tokens - before.prompt_tokens == sum(fate.prompt for fate in fates)
    assert after.compiles_after_ready == 0
    for fate in (*fates, *again):
        assert fate.arrived <= fate.entered <= fate.began <= fate.ended and not fate.refused
        assert fate.cached == 0, "another salt, other pages"
    assert all(step.planned <= step.launched <= step.asked <= step.read for step in steps)


def test_engines_that_sleep_serve_as_many_tokens_and_find_as_many_pages_as_the_simulation() -> None:
    requests = [TraceRequest(0.02 * n, 70 + n % 5, 1 + n % 9, (n % 3, 7), 32) for n in range(40)]
    engines = [JaxEngine.load(CONFIG, tokenizer_of, SleepingDevices(Slow(), 60, False)) for _ in range(2)]
    fleet = Fleet(engines[0].capabilities)
    try:
        for number, engine in enumerate(engines):
            fleet.join(engine, f"replica {number}")
        fates = recording.serve(fleet, Trace(requests))
        generated = sum(engine.stats().generated_tokens for engine in engines)
    finally:
        fleet.shutdown()
        for engine in engines:
            engine.shutdown()
    assert generated == sum(request.answer for request in requests)
    assert all(fate.ended - fate.arrived >= 0.00199 * fate.answer for fate in fates), "a step for each token"
    config = engines[0].loops[0].stepper.config
    simulation = Simulation(
        SimulatedService(config, 60, 256, Slow(), HostTimes(2e-4, 1e-5), replicas=2), Trace(requests)
    )
    simulated = simulation.run()
    assert sum(fate.cached for fate in fates) == pytest.approx(sum(fate.cached for fate in simulated), rel=0.1)
