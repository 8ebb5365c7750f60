"""States kept at page ends. A device that notes what each slot's state has seen is the oracle: its samples follow from
all tokens of the state, so a state that is not the prefix's shows as a wrong token. Of a real model, transformers.
"""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings

from apps.llm.api import Caller, Sampling, TokenOutput, TokenRequest
from apps.llm.engine.executor_protocol import Tokens, step_shapes
from apps.llm.engine.prefix import reuse
from apps.llm.engine.prefix.kept_states import KeptStates
from apps.llm.engine.schedule.answer import Answer
from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.engine.schedule.steady import steady_steps
from apps.llm.engine.schedule.stepper import Stepper
from apps.llm.page_names import page_names
from apps.llm.text import Engine, EngineConfig, SamplingParams
from tests.llm.engine import tiny_models
from tests.llm.engine.asking import ids, read, settled
from tests.llm.engine.schedule.test_stepper import Device

PAGE, WORTH, VOCAB = 8, 16, 50


@pytest.fixture(autouse=True)
def little_is_worth_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "WORTH", WORTH)


def after(tokens: tuple[int, ...]) -> int:
    return 1 + hash(tokens) % (VOCAB - 1)


class RecurrentDevice(Device):
    """Its slots hold what their sequences have seen."""

    def __init__(self, config: EngineConfig, pages: int, states: int):
        super().__init__(config, pages)
        self.shapes, self.prefix_states = step_shapes(config, 120), states
        self.slots: dict[int, tuple[int, ...]] = {}
        self.rows: dict[int, tuple[int, ...]] = {}
        self.last: dict[int, int] = {}
        self.computed = 0

    def launch(self, step: Any, constraints: Any = None, readout: Any = None) -> tuple[int, Tokens]:
        parts = {name: step.packed[where].reshape(dims) for name, (where, dims) in step.shape.parts.items()}
        made = np.zeros(step.shape.seqs, np.int32)
        for row in range(int(parts["num_seqs"][0])):
            tokens = parts["tokens"][parts["q_starts"][row] : parts["q_starts"][row + 1]].tolist()
            slot, kept, length = (int(parts[name][row]) for name in ("slot", "row", "kv_lens"))
            if parts["decoding"][row]:
                tokens = [self.last[slot]]
            state = self.slots[slot] if len(tokens) < length else ()
            assert len(state) == length - len(tokens)
            self.slots[slot] = (*state, *tokens)
            made[row] = self.last[kept] = after(self.slots[slot])
            self.computed += len(tokens)
        return 0, Tokens(made, np.zeros(0), np.zeros(0), np.zeros(0))

    def keep_states(self, copies: Any) -> None:
        for slot, row in zip(copies.slots, copies.rows, strict=True):
            self.rows[row] = self.slots[slot]

    def bring_back_states(self, copies: Any) -> None:
        for slot, row in zip(copies.slots, copies.rows, strict=True):
            self.slots[slot] = self.rows[row]


class Served:
    """A stepper over such a device, and what it has answered."""

    def __init__(self, batch: int, pages: int, states: int, budget: int = 100):
        config = EngineConfig(
            max_batch_size=batch,
            max_step_tokens=max(budget, batch),
            page_size=PAGE,
            pages=pages,
            max_model_len=120,
            speculation="off",
        )
        self.device = RecurrentDevice(config, pages, states)
        self.stepper: Stepper[Any] = Stepper(config, self.device)
        self.answers: dict[int, list[int]] = {}
        self.prompts: dict[int, tuple[int, ...]] = {}
        self._ids = itertools.count(1)

    def submit(self, prompt: tuple[int, ...], tokens: int, background: bool = False) -> int:
        id = next(self._ids)
        request = TokenRequest(
            id=id,
            prompt_ids=prompt,
            limit=len(prompt) + tokens,
            sampling=Sampling(seed=id, ignore_eos=True),
            caller=Caller(background=background),
        )
        seq = Sequence(request, id, request.limit, list(prompt), len(prompt))
        self.answers[id], self.prompts[id] = [], prompt
        self.stepper.add([(seq, Answer(seq, VOCAB, ()), self._take)])
        return id

    def _take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            assert output.error is None
            self.answers[output.request] += output.token_ids

    def check(self) -> None:
        """Every answer is right so far, and the log has the pages before kept states that are in the pool."""
        for id, answer in self.answers.items():
            text = self.prompts[id]
            for token in answer:
                assert token == after(text)
                text = (*text, token)
        scheduler = self.stepper.scheduler
        states = scheduler.states
        assert states is not None
        reached = set[bytes]()
        for id, answer in self.answers.items():
            names = page_names(b"", [*self.prompts[id], *answer], PAGE)
            reached.update(*(names[: at + 1] for at, name in enumerate(names) if name in states))
        in_pool = set(scheduler.pool._page_of)
        assert set(scheduler.pool.news.since(0).stored) == reached & in_pool
        assert len(states) <= self.device.prefix_states

    def run(self) -> None:
        turns = 0
        while not self.stepper.idle:
            self.stepper.step()
            turns += 1
            assert turns < 500
        self.check()


PROMPTS = st.lists(st.sampled_from([(7,) * 16, (8,) * 16, (7, 8) * 12, (9,) * 5]), min_size=1, max_size=4)


@settings(max_examples=200)
@given(
    batch=st.integers(1, 4),
    pages=st.integers(16, 40),
    states=st.integers(1, 5),
    budget=st.integers(8, 40),
    story=st.lists(
        st.one_of(
            st.tuples(st.just("ask"), PROMPTS, st.integers(1, 40), st.booleans()),
            st.tuples(st.just("go on"), st.integers(0, 9), st.integers(1, 19)),
            st.tuples(st.just("abort"), st.integers(0, 9)),
            st.tuples(st.just("turns"), st.integers(1, 6)),
        ),
        max_size=30,
    ),
)
def test_every_answer_is_that_of_its_own_prefix(
    batch: int, pages: int, states: int, budget: int, story: list[tuple[Any, ...]]
) -> None:
    served = Served(batch, pages, states, budget)
    for what, *given_ in story:
        if what == "ask":
            prompt = tuple(itertools.chain(*given_[0]))[:70]
            served.submit(prompt, given_[1], background=given_[2])
        elif what == "go on" and served.answers:
            id = list(served.answers)[given_[0] % len(served.answers)]
            served.submit((*served.prompts[id], *served.answers[id], 5)[:100], given_[1])
        elif what == "abort" and served.answers:
            served.stepper.abort([list(served.answers)[given_[0] % len(served.answers)]])
        elif what == "turns":
            for _ in range(given_[0]):
                served.stepper.step()
                served.check()
    served.run()


def test_a_prompt_that_comes_again_is_computed_from_its_last_full_page() -> None:
    served, prompt = Served(2, 40, 2), tuple(range(1, 46))
    for computed in (45, 5, 5):
        before = served.device.computed
        served.submit(prompt, 1)
        served.run()
        assert served.device.computed - before == computed


def test_a_conversation_goes_on_from_its_answer() -> None:
    served, prompt = Served(2, 40, 2), tuple(range(1, 28))
    id = served.submit(prompt, 40)
    served.run()
    again, before = (*prompt, *served.answers[id], 3, 4), served.device.computed
    served.submit(again, 1)
    served.run()
    assert len(again) - (served.device.computed - before) >= len(prompt) + 40 - WORTH - PAGE


def test_what_prompts_share_is_kept_when_it_is_seen_for_the_second_time() -> None:
    served, shared = Served(2, 60, 3), tuple(range(1, 41))
    computed = []
    for number in range(3):
        before = served.device.computed
        served.submit((*shared, *[30 + number] * 25), 1)
        served.run()
        computed.append(served.device.computed - before)
    assert computed == [65, 65, 25]


def test_the_least_recently_used_state_makes_way_and_passing_ones_take_no_more_than_one_row() -> None:
    served = Served(2, 100, 2)
    one, other = (1,) * 27, (2,) * 27
    for prompt, tokens in ((one, 1), (other, 1), (one, 1), ((3,) * 27, 1), (one, 1)):
        served.submit(prompt, tokens)
        served.run()
    states = served.stepper.scheduler.states
    assert states is not None
    assert [name in states for name in (page_names(b"", p, PAGE)[2] for p in (one, other))] == [True, False]
    served.submit(one, 80)
    served.run()
    assert page_names(b"", one, PAGE)[2] in states, "four states on its way replaced each other"


def test_a_row_that_somebody_is_to_have_is_not_taken_before() -> None:
    """Neither of a sequence that is about to enter, for which others make way, nor of one that has."""
    states = KeptStates(1)

    def sequence(tokens: int) -> Sequence:
        seq = Sequence(TokenRequest(id=1, prompt_ids=(), limit=17, sampling=Sampling(seed=1)), 1, 17, [tokens] * 17, 17)
        seq.slot = 0
        seq.names(2, PAGE)
        return seq

    first = sequence(1)
    assert states.keep(first, 2, passing=False)
    states.take()
    assert states.hold(first.hashes) == 2
    assert not states.keep(sequence(2), 2, passing=False)
    states.bring_back(first.hashes[1], 3)
    assert states.hold([]) == 0
    assert not states.keep(sequence(2), 2, passing=False)
    assert states.take()[1].rows == [0]
    assert states.keep(sequence(2), 2, passing=False)


def test_steps_that_keep_a_state_are_not_leapt_over() -> None:
    served = Served(2, 40, 2)
    served.submit((1,) * 5, 100)
    counts = Counter[int]()
    while not served.stepper.idle:
        states = served.stepper.scheduler.states
        assert states is not None
        leap, kept = steady_steps(served.stepper.scheduler), served.stepper.scheduler.running
        before = kept[0].kept if kept else 0
        for _ in range(max(1, leap)):
            served.stepper.step()
        if leap and kept:
            assert kept[0].kept == before
            counts[leap] += 1
    assert max(counts) > 2


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_answers_after_a_reused_prefix_are_those_of_transformers(
    family: str, tmp_path: Path, compile_cache: str
) -> None:
    """Prompts again, prompts that part, and second turns, several at once, with few pages: some are preempted."""
    tiny_models.save(tiny_models.make(family), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    settings_ = tiny_models.SMALL | {"pages": 30, "max_step_tokens": 96, "prefix_states": 3}
    engine = Engine.load(EngineConfig(model=str(tmp_path), compile_cache=compile_cache, **settings_))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    shared = [2 + (place * 7) % 300 for place in range(40)]
    prompts = [shared + [100 + number] * count for number, count in enumerate((5, 30, 17, 5))]
    try:
        for _ in range(3):
            open_ = [engine.submit(prompt, greedy) for prompt in prompts]
            for number, generation in enumerate(open_):
                prompt = prompts[number]
                made = model.generate(
                    torch.tensor([prompt]), do_sample=False, max_new_tokens=24, min_new_tokens=24, eos_token_id=None
                )
                answer = ids(read(generation)[0])
                assert answer == made[0, len(prompt) :].tolist()
                prompts[number] = prompt if number % 2 else [*prompt, *answer, 9, 9][:90]
            settled(engine)
        stats = engine.stats()
        assert stats.prefix_hit_tokens > 100 and not stats.compiles_after_ready
    finally:
        engine.shutdown()
