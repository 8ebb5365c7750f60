"""The loop: who is denoised with whom, who waits, and how every job ends."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from apps.serving.errors import EngineStopped, QueueFull, RequestError
from apps.stable_diffusion.engine.engine import Engine
from apps.stable_diffusion.engine.job import Aborted, Finished, PictureFailed, Preview, QueuePosition, Step
from apps.stable_diffusion.engine.open_jobs import FAILED_STARTS
from apps.stable_diffusion.engine.picture_queue import LAUNCH_S
from tests.stable_diffusion.engine.loop_backend import LoopBackend, asked, read, wait_for


class Bench:
    """An engine over a LoopBackend, held until `go`, so that who comes when is certain."""

    def __init__(self, **options: Any):
        waiting = options.pop("max_waiting", 64)
        self.backend = LoopBackend(**options)
        self.engine = Engine(self.backend, waiting)

    def hold(self) -> Any:
        """Keeps the loop busy with a picture of one step, which is the caller's to read."""
        self.backend.began.clear()
        self.backend.gate.clear()
        job = self.engine.submit([asked("held", steps=1)])
        assert self.backend.began.wait(10)
        return job

    def go(self) -> None:
        self.backend.gate.set()


@pytest.fixture
def bench() -> Iterator[Any]:
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(**options))
        return made[-1]

    yield make
    for one in made:
        one.go()
        one.engine.shutdown()


def test_the_events_of_a_job(bench):
    job = bench(step_s=LAUNCH_S).engine.submit([asked("a long prompt", steps=3, seed=5)])
    events = list(job)
    assert events[0] == QueuePosition(0)
    assert events[1:4] == [Step(0, step, 3) for step in (1, 2, 3)]
    [finished] = events[4:]
    assert isinstance(finished, Finished) and finished.picture == 0 and finished.steps == 3
    assert finished.pixels.shape == (16, 16, 3) and finished.pixels[0, 0, 0] == 5 + 3
    assert finished.warnings == ("a long prompt was cut",) and finished.seconds >= 3 * LAUNCH_S
    assert job.end == "finished"


def test_pictures_join_and_leave_between_steps(bench):
    b = bench(step_s=LAUNCH_S)
    long = b.engine.submit([asked("long", steps=6)])
    wait_for(lambda: len(b.backend.launches) == 2)
    short = b.engine.submit([asked("short", steps=2)])
    assert read(short)[-1] == "Finished" and long.end is None, "the newcomer did not wait for the batch's end"
    assert read(long)[-1] == "Finished"
    together = [prompts for prompts, _ in b.backend.launches]
    assert together.count(("long", "short")) == 2 and together[-1] == ("long",)
    assert sum(steps for prompts, steps in b.backend.launches if "long" in prompts) == 6


def test_no_more_than_the_largest_batch_and_first_come_first_served(bench):
    b = bench()
    held = b.hold()
    jobs = [b.engine.submit([asked(f"p{i}", steps=2)]) for i in range(6)]
    b.go()
    assert all(read(job)[-1] == "Finished" for job in [held, *jobs])
    batches = [prompts for prompts, _ in b.backend.launches]
    assert max(map(len, batches)) == 4
    order = list(dict.fromkeys(prompt for prompts in batches for prompt in prompts))
    assert order == ["held", *(f"p{i}" for i in range(6))]


def test_each_size_has_its_turn(bench):
    """A stream of one size cannot keep another waiting for longer than what was there before it."""
    b = bench(step_s=0.002)
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            jobs = [b.engine.submit([asked("small", steps=4)]) for _ in range(6)]
            for job in jobs:
                list(job)

    threads = [threading.Thread(target=flood) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(b.backend.launches) > 10)
    for _ in range(3):
        before = b.engine.stats().pictures
        assert read(b.engine.submit([asked("wide", steps=4, size=(32, 16))]))[-1] == "Finished"
        assert b.engine.stats().pictures - before <= 6 + 6 + 4 + 1
    stop.set()
    for thread in threads:
        thread.join(60)


def test_the_oldest_goes_first_whatever_its_size(bench):
    b = bench()
    held = b.hold()
    jobs = [
        b.engine.submit([asked("wide", steps=2, size=(32, 16))]),
        b.engine.submit([asked("small", steps=2)]),
        b.engine.submit([asked("wider", steps=2, size=(32, 16))]),
    ]
    b.go()
    for job in [held, *jobs]:
        list(job)
    batches = [prompts for prompts, _ in b.backend.launches]
    assert batches.index(("wide", "wider")) < batches.index(("small",))


def test_fast_steps_share_a_launch_and_slow_ones_do_not(bench):
    fast = bench(step_s=0.001)
    list(fast.engine.submit([asked("x", steps=60)]))
    launches = [steps for _, steps in fast.backend.launches]
    assert sum(launches) == 60 and launches[0] == 1 and len(launches) < 12
    slow = bench(step_s=LAUNCH_S * 0.7)
    list(slow.engine.submit([asked("x", steps=4)]))
    assert [steps for _, steps in slow.backend.launches] == [1, 1, 1, 1]


def test_previews(bench):
    b = bench(step_s=0.001)
    job = b.engine.submit([asked("x", steps=20, seed=1)], previews=3)
    previews = [event for event in job if isinstance(event, Preview)]
    assert [(p.number, p.step, p.steps) for p in previews] == [(0, 5, 20), (1, 10, 20), (2, 15, 20)]
    assert [int(p.pixels[0, 0, 0]) for p in previews] == [6, 11, 16]
    few = [event for event in b.engine.submit([asked("x", steps=2)], previews=3) if isinstance(event, Preview)]
    assert [(p.number, p.step) for p in few] == [(0, 1)]
    with pytest.raises(RequestError, match="previews"):
        b.engine.submit([asked("x")], previews=-1)


def test_an_aborted_job_is_gone_after_the_step(bench):
    b = bench(step_s=LAUNCH_S)
    stays, leaves = (b.engine.submit([asked(name, steps=20)]) for name in ("stays", "leaves"))
    wait_for(lambda: ("stays", "leaves") in [prompts for prompts, _ in b.backend.launches])
    leaves.abort()
    launches = len(b.backend.launches)
    with pytest.raises(Aborted):
        list(leaves)
    assert len(b.backend.launches) - launches <= 3 and leaves.end == "aborted"
    wait_for(lambda: len(b.backend.launches) > launches + 1)
    assert b.backend.launches[-1][0] == ("stays",) and b.engine.stats().running == 1
    leaves.abort()  # again, and after the end: nothing
    stays.abort()
    wait_for(lambda: b.engine.stats().running == 0)
    assert b.engine.stats().aborted == 2


def test_an_aborted_job_that_waits_never_starts(bench):
    b = bench()
    held = b.hold()
    waits, next_one = b.engine.submit([asked("waits")] * 2), b.engine.submit([asked("next")])
    waits.abort()
    b.go()
    list(held), list(next_one)
    with pytest.raises(Aborted):
        list(waits)
    assert not any("waits" in prompts for prompts, _ in b.backend.launches)
    assert b.engine.stats().waiting == 0


def test_a_full_queue_says_when_to_come_back(bench):
    b = bench(step_s=0.02, max_waiting=4)
    list(b.engine.submit([asked("timed", steps=10)]))
    held = b.hold()
    jobs = [b.engine.submit([asked("x", steps=100)] * 2) for _ in range(2)]
    with pytest.raises(QueueFull, match="4 pictures wait already") as full:
        b.engine.submit([asked("one too many")])
    assert 1 <= full.value.retry_after_s <= 60
    for job in jobs:
        job.abort()
    b.go()
    list(held)
    wait_for(lambda: b.engine.stats().waiting == 0)
    assert read(b.engine.submit([asked("x")] * 6))[-1] == "Finished", "an idle engine takes a large job"


def test_a_picture_that_cannot_start_takes_its_job_with_it_and_no_other(bench):
    def refuse(request):
        if request.prompt == "bad":
            raise RequestError("prompt", "prompt is bad")

    b = bench(at_start=refuse)
    held = b.hold()
    good, mixed = b.engine.submit([asked("good")]), b.engine.submit([asked("fine"), asked("bad"), asked("fine")])
    b.go()
    with pytest.raises(RequestError, match="prompt is bad"):
        list(mixed)
    assert mixed.end == "failed" and read(good)[-1] == "Finished"
    list(held)
    stats = b.engine.stats()
    assert (stats.running, stats.waiting, stats.failed) == (0, 0, 3)
    b.engine.check()


def test_starts_that_fail_again_and_again_stop_the_engine(bench):
    def fail(request):
        raise OSError("the device is gone")

    b = bench(at_start=fail)
    for _ in range(FAILED_STARTS - 1):
        with pytest.raises(PictureFailed, match="the device is gone"):
            list(b.engine.submit([asked("x")]))
        b.engine.check()
    with pytest.raises(EngineStopped, match="the device is gone"):
        list(b.engine.submit([asked("x")]))
    with pytest.raises(EngineStopped):
        b.engine.check()


def test_a_failed_step_ends_everything_with_its_reason(bench):
    b = bench()
    held = b.hold()
    waits = b.engine.submit([asked("waits")] * 6)
    b.backend.broken = RuntimeError("HBM is on fire")
    b.go()
    for job in (held, waits):
        with pytest.raises(EngineStopped, match="HBM is on fire"):
            list(job)
        assert job.end == "failed"
    with pytest.raises(EngineStopped, match="HBM is on fire"):
        b.engine.check()
    with pytest.raises(EngineStopped):
        b.engine.submit([asked("x")])
    assert b.engine.stats().waiting == 0


def test_a_hang_is_noticed(bench):
    b = bench()
    b.engine.check(0.01)
    held = b.hold()
    b.engine.check(60)
    time.sleep(0.05)
    with pytest.raises(EngineStopped, match="in one step for"):
        b.engine.check(0.01)
    b.go()
    list(held)
    wait_for(lambda: b.engine.stats().step_running_s == 0)
    b.engine.check(0.01)


def test_shutdown_fails_what_is_open(bench):
    b = bench(step_s=LAUNCH_S)
    job = b.engine.submit([asked("x", steps=100)])
    wait_for(lambda: b.backend.launches)
    b.engine.shutdown()
    with pytest.raises(EngineStopped, match="shut down"):
        list(job)
    with pytest.raises(EngineStopped):
        b.engine.submit([asked("x")])


@pytest.mark.parametrize(("requests", "field"), [([], "n"), ([asked("x", size=(8, 8))], "size")])
def test_what_no_backend_could_draw_is_refused_at_once(bench, requests, field):
    with pytest.raises(RequestError) as refused:
        bench().engine.submit(requests)
    assert refused.value.field == field


def test_many_readers_in_one_event_loop(bench):
    """Every job ends in exactly one way, whatever leaves, joins and fails."""

    def refuse(request):
        if request.prompt == "bad":
            raise RequestError("prompt", "prompt is bad")

    b = bench(step_s=0.0005, at_start=refuse, max_waiting=1000)

    async def one(index: int) -> str:
        sizes = ((16, 16), (32, 16))
        prompts = ["bad" if index % 7 == 0 else "x"] * (1 + index % 3)
        requests = [asked(p, steps=1 + index % 9, size=sizes[index % 2], seed=index) for p in prompts]
        job = b.engine.submit(requests, previews=index % 2, loop=asyncio.get_running_loop())
        seen = []
        try:
            async for event in job:
                seen.append(event)
                if index % 5 == 0:
                    job.abort()
        except (Aborted, RequestError) as error:
            return type(error).__name__
        finished = [event for event in seen if isinstance(event, Finished)]
        assert sorted(event.picture for event in finished) == list(range(len(requests)))
        assert all(event.pixels[0, 0, 0] == (index + event.steps) % 256 for event in finished)
        return "finished"

    async def all_of_them() -> list[str]:
        async with asyncio.timeout(30):
            return await asyncio.gather(*(one(index) for index in range(80)))

    ends = asyncio.run(all_of_them())
    assert {end for index, end in enumerate(ends) if index % 5 and index % 7} == {"finished"}
    assert {end for index, end in enumerate(ends) if index % 5 and not index % 7} == {"RequestError"}
    wait_for(lambda: b.engine.stats().running == 0)
    stats = b.engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    ordered = sum(1 + index % 3 for index in range(80))
    assert stats.pictures + stats.aborted + stats.failed == ordered
    assert len(b.engine.step_times.launches) > 0
