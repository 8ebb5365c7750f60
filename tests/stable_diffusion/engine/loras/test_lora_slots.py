"""Which combination is in which slot, and pictures that wait for one."""

from collections.abc import Iterator
from typing import Any

import pytest

from apps.stable_diffusion.engine.engine import Engine
from apps.stable_diffusion.engine.loras.slots import LoraSlots, SlotsTaken
from tests.stable_diffusion.engine.loop_backend import LoopBackend, asked, read


def test_slots_are_shared_kept_and_given_to_others() -> None:
    slots = LoraSlots(2)
    assert slots.take("a") == (1, True) and slots.take("a") == (1, False) and slots.take("b") == (2, True)
    with pytest.raises(SlotsTaken):
        slots.take("c")
    slots.release(1)
    with pytest.raises(SlotsTaken):
        slots.take("c")
    slots.release(1)
    slots.release(2)
    assert slots.take("a") == (1, False), "what nobody uses stays"
    slots.release(1)
    assert slots.take("c") == (2, True), "b was used before a"
    slots.forget("c")
    assert slots.take("b") == (2, True)
    slots.release(0)
    assert slots.take("b") == (2, False)


@pytest.fixture
def engine() -> Iterator[tuple[Engine, Any]]:
    """One slot, and places for four pictures; nothing is launched before `backend.gate.set()`."""
    backend = LoopBackend()
    made = Engine(backend)
    backend.gate.clear()
    first = made.submit([asked("held", steps=1)])
    assert backend.began.wait(60)
    yield made, backend
    backend.gate.set()
    list(first)
    made.shutdown()


def test_pictures_of_one_combination_run_together_and_another_waits(engine: Any) -> None:
    made, backend = engine
    jobs = [
        made.submit([asked(prompt, steps=steps, lora=lora)])
        for prompt, steps, lora in (("a1", 4, "a"), ("b1", 2, "b"), ("a2", 3, "a"), ("bare", 2, None), ("b2", 2, "b"))
    ]
    backend.gate.set()
    assert all(read(job)[-1] == "Finished" for job in jobs)
    batches = [set(prompts) for prompts, _ in backend.launches]
    assert not any(batch & {"a1", "a2"} and batch & {"b1", "b2"} for batch in batches)
    assert {"a1", "bare"} in batches or {"a1", "bare", "a2"} in batches, "a picture without LoRA passes"
    order = list(dict.fromkeys(prompt for prompts, _ in backend.launches for prompt in prompts))
    assert order.index("b1") < order.index("a2"), "nobody keeps the slot from who waits first"


def test_who_waits_for_a_slot_keeps_no_other_size_from_running(engine: Any) -> None:
    made, backend = engine
    jobs = [
        made.submit([asked("small", steps=3, lora="a")]),
        made.submit([asked("wide", steps=2, size=(32, 16), lora="b")]),
        made.submit([asked("small too", steps=2, lora="b")]),
        made.submit([asked("wide and bare", steps=2, size=(32, 16))]),
    ]
    backend.gate.set()
    assert all(read(job)[-1] == "Finished" for job in jobs)


def test_the_slot_of_an_aborted_picture_is_free(engine: Any) -> None:
    made, backend = engine
    first = made.submit([asked("a", steps=50, lora="a")])
    second = made.submit([asked("b", steps=2, lora="b")])
    backend.step_s = 0.01
    backend.gate.set()
    for _ in first:
        first.abort()
        break
    assert read(second)[-1] == "Finished" and made.stats().aborted == 1
