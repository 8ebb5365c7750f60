"""Turns without threads, sleeps and devices: each is taken by the test, at a time that the test's clock says.

The executor in the device's place reads the packed step as the compiled program does (`StepShape.unpack`), and samples
from a sequence's seed and length alone. So whatever is filled in wrongly shows as a wrong token.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from apps.llm.api import Sampling, TokenOutput, TokenRequest
from apps.llm.engine.executor_protocol import Tokens, fitting, step_shapes
from apps.llm.engine.schedule.adapter_changes import AdapterChange
from apps.llm.engine.schedule.answer import Answer
from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.engine.schedule.stepper import LATE, Stepper
from ray_configs.llm import EngineConfig

VOCAB, PAGE = 100_000, 8
SECOND = 10**9


def sampled(seed: int, length: int) -> int:
    """The token after so many tokens of a sequence."""
    return 1 + (seed * 7919 + length) % (VOCAB - 1)


class Device:
    """Samples what it is asked for, and notes in which order."""

    spans_hosts = skips_padding = False
    compiles_after_ready = programs_compiled = prefix_states = 0

    def __init__(self, config: EngineConfig, pages: int):
        self.arch, self.pages, self.host_pages = SimpleNamespace(vocab_size=VOCAB), pages, 0
        self.shapes = step_shapes(config, 64)
        self.events: list[Any] = []
        self.launched = 0

    def shape_for(self, tokens: int, seqs: int, reads: bool = False) -> Any:
        return fitting(self.shapes, tokens, seqs)

    def launch(self, step: Any, constraints: Any = None, readout: Any = None) -> tuple[int, Tokens]:
        with jax.default_device(jax.devices("cpu")[0]):
            batch = jax.tree.map(np.asarray, step.shape.unpack(step.packed))
        count = int(batch.num_seqs[0])
        ids = np.zeros(step.shape.seqs, np.int32)
        for row in range(count):
            ids[row] = sampled(int(batch.sampling.seed[row]), int(batch.kv_lens[row]))
            pages = batch.pages[row][: -(-int(batch.kv_lens[row]) // PAGE)]
            assert pages.all() and len(set(pages.tolist())) == len(pages)
        self.launched += 1
        self.events.append(("launch", self.launched, count))
        return self.launched, Tokens(ids, np.zeros(0), np.zeros(0), np.zeros(0))

    def read(self, launched: tuple[int, Tokens]) -> Tokens:
        self.events.append(("read", launched[0]))
        return launched[1]

    def write_adapter(self, place: int, layer: int, values: Any) -> None:
        self.events.append(("adapter", place, layer))

    def clean(self, pages: Any) -> None:
        self.events.append("clean")


class Turns:
    """A stepper, its device and clock, and what it has sent."""

    def __init__(self, batch: int = 2, pages: int = 64):
        config = EngineConfig(
            max_batch_size=batch, max_step_tokens=16, page_size=PAGE, pages=pages, max_model_len=64, speculation="off"
        )
        self.now = SECOND
        self.device = Device(config, pages)
        self.stepper: Stepper[Any] = Stepper(config, self.device, clock=lambda: self.now)
        self.sent: dict[int, list[TokenOutput]] = {}
        self._ids = iter(range(1, 1000))

    def submit(self, prompt: int, tokens: int, adapter: int = 0, **more: Any) -> int:
        """Submit a prompt of so many tokens, for an answer of so many."""
        id = next(self._ids)
        request = TokenRequest(
            id=id,
            prompt_ids=tuple(range(1, prompt + 1)),
            limit=prompt + tokens,
            sampling=Sampling(seed=id, ignore_eos=True),
            **more,
        )
        seq = Sequence(request, id, request.limit, list(request.prompt_ids), prompt, adapter=adapter)
        self.sent[id] = []
        self.stepper.add([(seq, Answer(seq, VOCAB, ()), self._take)])
        return id

    def _take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            self.sent[output.request].append(output)

    def tokens(self, id: int) -> list[int]:
        return [token for output in self.sent[id] for token in output.token_ids]

    def run(self) -> int:
        """Take turns until there is nothing to do; how many."""
        turns = 0
        while not self.stepper.idle:
            self.stepper.step()
            turns += 1
            assert turns < 200
        return turns


@pytest.fixture
def turns() -> Iterator[Turns]:
    made = Turns()
    yield made
    assert made.stepper.scheduler.pool.used == 0
    assert made.stepper.queued == 0


def test_every_answer_is_that_of_its_seed_and_lengths(turns: Turns) -> None:
    wanted = {turns.submit(prompt, count): (prompt, count) for prompt, count in [(3, 9), (30, 5), (1, 1), (17, 20)]}
    turns.run()
    for id, (prompt, count) in wanted.items():
        assert turns.tokens(id) == [sampled(id, prompt + i) for i in range(count)]
        assert [output.finish_reason for output in turns.sent[id]][-1] == "length"


def test_a_step_is_launched_before_the_one_before_it_is_read(turns: Turns) -> None:
    turns.submit(2, 3)
    turns.run()
    assert turns.device.events == [
        ("launch", 1, 1),
        ("launch", 2, 1),
        ("read", 1),
        ("launch", 3, 1),
        ("read", 2),
        ("read", 3),
    ]


def test_a_request_enters_when_a_slot_is_free_at_the_time_of_that_turn(turns: Turns) -> None:
    first, second, third = (turns.submit(2, 2) for _ in range(3))
    while not turns.stepper.idle:
        turns.now += SECOND
        turns.stepper.step()
    entered = {id: turns.sent[id][0].entered_ns for id in (first, second, third)}
    assert entered[first] == entered[second] == 2 * SECOND
    assert entered[third] > max(turns.sent[first][-1].entered_ns, entered[first])


@pytest.mark.parametrize("waiting", [False, True])
def test_a_deadline_ends_its_request_alone(turns: Turns, waiting: bool) -> None:
    others = [turns.submit(2, 8) for _ in range(2 if waiting else 1)]
    late = turns.submit(2, 8, deadline_s=5.0)
    turns.stepper.step()
    turns.now = 6 * SECOND - 1
    turns.stepper.step()
    assert all(output.finish_reason is None for output in turns.sent[late])
    turns.now = 6 * SECOND
    turns.stepper.step()
    last = turns.sent[late][-1]
    assert (last.finish_reason, last.error, last.of_answer) == ("error", LATE, True)
    before = turns.tokens(late)
    turns.run()
    assert turns.tokens(late) == before == [sampled(late, 2 + i) for i in range(len(before))]
    assert bool(before) is not waiting
    for id in others:
        assert turns.tokens(id) == [sampled(id, 2 + i) for i in range(8)]


def test_a_deadline_after_the_end_says_nothing(turns: Turns) -> None:
    id = turns.submit(2, 1, deadline_s=5.0)
    turns.run()
    turns.now += 10 * SECOND
    turns.submit(1, 1)
    turns.run()
    assert [output.finish_reason for output in turns.sent[id] if output.finish_reason] == ["length"]


def test_an_aborted_request_has_no_pages_at_once(turns: Turns) -> None:
    id = turns.submit(9, 20)
    turns.stepper.step()
    turns.stepper.step()
    assert turns.stepper.scheduler.pool.used == 2
    turns.stepper.abort([id, 999])
    assert turns.stepper.scheduler.pool.used == 0
    assert turns.sent[id][-1].finish_reason == "abort"
    turns.run()


def test_an_adapter_is_written_a_layer_a_turn_once_its_place_is_free(turns: Turns) -> None:
    turns.submit(2, 3, adapter=1)
    other = turns.submit(2, 12, adapter=2)
    change = AdapterChange.of(1, [None, None])
    turns.stepper.adapter_changes.add([change])
    turns.run()
    written = [event for event in turns.device.events if event[0] == "adapter"]
    assert written == [("adapter", 1, 0), ("adapter", 1, 1)]
    assert change.done.done()
    at = [turns.device.events.index(event) for event in written]
    assert at[0] > turns.device.events.index(("read", 3)), "the last step of the sequence that has the place"
    assert any(event[0] == "launch" for event in turns.device.events[at[0] : at[1]]), "the other goes on between them"
    assert turns.tokens(other) == [sampled(other, 2 + i) for i in range(12)]


def test_a_failure_reaches_every_reader_and_every_change() -> None:
    turns = Turns(batch=1)
    ids = [turns.submit(2, 8) for _ in range(2)]
    turns.stepper.step()
    change = AdapterChange.of(1, [None])
    turns.stepper.adapter_changes.add([change])
    turns.stepper.fail("the device is gone")
    for id in ids:
        assert (turns.sent[id][-1].finish_reason, turns.sent[id][-1].error) == ("error", "the device is gone")
    assert "the device is gone" in str(change.done.exception(timeout=0))
