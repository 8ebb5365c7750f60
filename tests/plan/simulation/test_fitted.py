"""Step times fitted to steps whose law is known: what was not seen is told from what was."""

import random

import pytest

from apps.plan.simulation.fitted import fit, host_times
from apps.plan.simulation.recording import TimedStep


def law(decodes: list[int], chunks: list[tuple[int, int]], since: int) -> float:
    """Seconds."""
    tokens = len(decodes) + sum(tokens for tokens, _ in chunks)
    attended = 4e-7 * sum(decodes) + 1e-7 * sum(tokens * (length - (tokens - 1) / 2) for tokens, length in chunks)
    return attended + (0.003 + 8e-5 * tokens if chunks else 0.002 + 1e-4 * tokens + (0.001 if since == 0 else 0.0))


def drawn(dice: random.Random) -> tuple[list[int], list[tuple[int, int]]]:
    decodes = [dice.randint(10, 700) for _ in range(dice.choice([0, 1, 2, 4, 7, 8, 12, 16, 24, 32]))]
    chunks = []
    if not decodes or dice.random() < 0.2:
        tokens = dice.randint(2, 512 - len(decodes))
        chunks.append((tokens, tokens + dice.choice([0, 0, 100])))
    return decodes, chunks


def timed(count: int, noise: float, host_s: float = 3e-4, row_s: float = 1e-5) -> list[TimedStep]:
    """Steps one after another, as the engine launches and reads them."""
    dice, steps, now, free, since = random.Random(1), list[TimedStep](), 0.0, 0.0, 4
    pending: tuple[tuple[int, ...], tuple[tuple[int, int], ...], float, float, float] | None = None
    for _ in range(count):
        decodes, chunks = drawn(dice)
        planned, now = now, now + host_s + row_s * (len(decodes) + len(chunks))
        launched = now
        free = max(free, launched) + law(decodes, chunks, since) * dice.uniform(1 - noise, 1 + noise)
        since = 0 if chunks else since + 1
        if pending is not None:
            asked, now = now, max(now, pending[4])
            steps.append(TimedStep(*pending[:4], asked, now))
        pending = tuple(decodes), tuple(chunks), planned, launched, free
    return steps


@pytest.mark.parametrize(("noise", "off"), [(0.0, 0.01), (0.2, 0.08)])
def test_steps_that_were_not_seen_take_what_the_law_says(noise: float, off: float) -> None:
    fitted, dice = fit(timed(3000, noise)), random.Random(2)
    assert fitted.error <= 0.6 * noise + 0.005
    for _ in range(200):
        decodes, chunks = drawn(dice)
        for since in (0, 9):
            assert fitted.cost(decodes, chunks, since).seconds == pytest.approx(law(decodes, chunks, since), rel=off)


def test_what_holds_steps_up_now_and_then_is_part_of_all() -> None:
    """The sum is kept, so that a simulated run takes as long as a real one."""
    steps = timed(3000, 0.5)
    fitted, since, sums = fit(steps), 4, [0.0, 0.0]
    before = 0.0
    for step in steps:
        sums[0] += step.read - max(step.launched, before)
        sums[1] += fitted.cost(step.decodes, step.chunks, since).seconds
        before, since = step.read, 0 if step.chunks else since + 1
    assert sums[1] == pytest.approx(sums[0], rel=0.01)


def test_the_hosts_own_work_is_found() -> None:
    found = host_times(timed(3000, 0.0, 3e-4, 1e-5))
    assert found.step_s + 16 * found.row_s == pytest.approx(3e-4 + 16e-5, rel=0.25)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="too few to fit"):
        fit(timed(20, 0.0))
