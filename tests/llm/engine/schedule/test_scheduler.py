"""The scheduler against a pretended device, under random submits, aborts and shortage of pages.

The device keeps, in each slot of each page, the whole prefix that the key there was computed from. So a wrong page,
a page written by two, a position computed too late or a prefix wrongly shared shows at once as a wrong prefix.
"""

import copy
import itertools
import random
from collections import Counter, deque

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from apps.llm.api import Caller, TokenRequest
from apps.llm.engine.prefix.page_pool import PagePool
from apps.llm.engine.schedule.scheduler import Scheduler
from apps.llm.engine.schedule.sequence import UNREAD, Sequence, Work
from apps.llm.engine.schedule.steady import advance, steady_steps

PAGE = 4
EOS = 0
CALLER, BACKGROUND = Caller(), Caller(background=True)


class Device:
    """Computes steps in the order in which they are launched."""

    def __init__(self) -> None:
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}  # (page, offset) -> tokens up to and with this one
        self.last_token: dict[int, int] = {}  # by row
        self.truth: dict[Sequence, list[int]] = {}  # every token, sampled ones included
        self.ends = True  # whether it samples EOS

    def launch(self, work: list[Work]) -> list[tuple[Work, int]]:
        for item in work:
            seq, tokens = item.seq, self.truth[item.seq]
            known = [self.last_token[seq.slot]] if item.decoding else seq.tokens[item.start : item.stop]
            assert known == tokens[item.start : item.stop]
            computed = [*tokens[: item.stop], *item.draft]
            for position in range(item.start, len(computed)):
                slot = seq.pages[position // PAGE], position % PAGE
                assert slot[0] != 0
                self.slots[slot] = tuple(computed[: position + 1])
        samples = []
        for item in work:
            seq, tokens = item.seq, self.truth[item.seq]
            for position in range(item.stop):
                found = self.slots[seq.pages[position // PAGE], position % PAGE]
                assert found == tuple(tokens[: position + 1]), "reads what another sequence wrote"
            token = self.sample(seq)
            if item.samples:
                assert len(tokens) == item.stop, "each token is sampled once"
                tokens.append(token)
                if not item.draft:
                    self.last_token[seq.slot] = token
            samples.append((item, token))
        return samples

    def sample(self, seq: Sequence) -> int:
        return hash(tuple(self.truth[seq])) % 13 or int(not self.ends)


def twice(scheduler: Scheduler) -> Scheduler:
    """A copy of it, with all sequences."""
    lock = scheduler.pool.news._lock
    return copy.deepcopy(scheduler, {id(lock): lock})


def state(scheduler: Scheduler) -> list[object]:
    """All that its next steps depend on."""
    pool, accounts = scheduler.pool, scheduler.accounts.of_class(False)
    sequences = [
        (seq.arrival, seq.tokens, seq.computed, seq.pages, seq.hashes, seq.published, seq.slot, seq.on_device)
        for seq in (*scheduler.running, *scheduler.waiting)
    ]
    served = [(account.caller, pytest.approx(account.served)) for account in accounts]
    of_pool = list(pool._free), pool._users, pool._page_of, pool._hash_of, set(pool.news._names)
    return [sequences, served, *of_pool, scheduler.slots, vars(scheduler.backlog)]


class Serving(RuleBasedStateMachine):
    @initialize(pages=st.integers(5, 14), batch=st.integers(1, 4), budget=st.integers(4, 20), reuse=st.booleans())
    def start(self, pages: int, batch: int, budget: int, reuse: bool) -> None:
        self.scheduler = Scheduler(PagePool(pages, reuse), PAGE, batch, max(budget, batch))
        self.longest = (pages - 1) * PAGE
        self.device = Device()
        self.arrivals = itertools.count()
        self.open: list[Sequence] = []
        self.pending: list[tuple[Work, int]] = []
        self.stops: dict[Sequence, int] = {}  # where the sequence's computed tokens end, since it last entered
        self.accepted = 0
        self.leaps = Counter[int]()

    @rule(
        prompt=st.lists(st.sampled_from([7, 8]), min_size=1, max_size=30),
        answer=st.integers(1, 20),
        needs_last_token=st.booleans(),
        reusable=st.integers(0, 40),
        priority=st.integers(-1, 1),
        caller=st.sampled_from([CALLER, CALLER, Caller("b"), BACKGROUND]),
    )
    def submit(
        self, prompt: list[int], answer: int, needs_last_token: bool, reusable: int, priority: int, caller: Caller
    ) -> None:
        self.ask(prompt, answer, needs_last_token, reusable, priority, caller)

    def ask(
        self,
        prompt: list[int],
        answer: int,
        needs_last_token: bool = False,
        reusable: int = 40,
        priority: int = 0,
        caller: Caller = CALLER,
        moved: bool = False,
    ) -> Sequence:
        prompt = prompt[: self.longest - 1]
        limit = min(len(prompt) + answer, self.longest)
        arrival = next(self.arrivals)
        request = TokenRequest(
            id=arrival, prompt_ids=tuple(prompt), limit=limit, priority=priority, caller=caller, moved=moved
        )
        seq = Sequence(request, arrival, limit, list(prompt), len(prompt), needs_last_token=needs_last_token)
        seq.reusable = reusable
        self.device.truth[seq] = list(prompt)
        self.open.append(seq)
        self.scheduler.add(seq)
        return seq

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 100))
    def abort(self, which: int) -> None:
        self.scheduler.finish(self.open.pop(which % len(self.open)))

    @rule()
    def step(self) -> None:
        """One turn of the engine's loop: schedule, launch, read the step before."""
        self.turn({})

    @rule(dice=st.randoms(use_true_random=False))
    def step_with_drafts(self, dice: random.Random) -> None:
        """A turn that reads first, so that it knows what to draft for: some of it right, some wrong."""
        self.read()
        self.turn(self.drafts(dice))

    @rule(steps=st.integers(1, 20))
    def leap(self, steps: int) -> None:
        """Many steps at once leave what single ones leave. Of copies: the device computes single steps."""
        steps = min(steps, steady_steps(self.scheduler))
        if not steps or any(item.draft for item, _ in self.pending):
            return
        self.leaps[steps] += 1
        singly, at_once = twice(self.scheduler), twice(self.scheduler)
        running = set(singly.running)
        for _ in range(steps):
            work = singly.schedule()
            assert {item.seq for item in work} == running and all(item.decoding for item in work)
            for item in work:
                singly.fill_in(item.seq, 9)
        advance(at_once, steps, 9)
        assert state(at_once) == state(singly)
        assert singly.preemptions == self.scheduler.preemptions and not singly.entered

    def drafts(self, dice: random.Random) -> dict[Sequence, list[int]]:
        scheduler, drafts = self.scheduler, {}
        spare = scheduler.max_batch - len(scheduler.running) - len(scheduler.waiting)
        for seq in scheduler.running:
            count = dice.randint(0, 6)
            if seq.one_left and 0 < count <= spare:
                spare -= count
                drafts[seq] = [self.device.sample(seq), *(dice.randrange(13) for _ in range(count - 1))]
                if dice.random() < 0.3:
                    drafts[seq][0] = 13
        return drafts

    def turn(self, drafts: dict[Sequence, list[int]]) -> None:
        if any(item.draft for item, _ in self.pending):
            self.read()
        running = self.scheduler.running
        expected = [seq for seq in running if seq.decoding and seq.ready and not seq.background]
        preemptions = self.scheduler.preemptions
        work = self.scheduler.schedule(drafts)
        self.check_work(work, expected, preempted=self.scheduler.preemptions > preemptions)
        launched = self.device.launch(work)
        self.read()
        self.pending = launched

    def read(self) -> None:
        for item, token in self.pending:
            seq = item.seq
            if not item.samples or seq.done:
                continue
            self.scheduler.fill_in(seq, token)
            self.look(seq, token)
            for drafted in item.draft:
                if seq.done or token != drafted:
                    break
                token = self.device.sample(seq)
                self.device.truth[seq].append(token)
                self.scheduler.accept(seq, token)
                self.stops[seq] += 1
                self.accepted += 1
                self.look(seq, token)
        self.pending = []

    def look(self, seq: Sequence, token: int) -> None:
        """A token has been read."""
        known = [token for token in seq.tokens if token != UNREAD]
        assert known == self.device.truth[seq][: len(known)] and len(known) <= seq.limit
        if token == EOS or len(known) >= seq.limit:
            self.scheduler.finish(seq)
            self.open.remove(seq)

    def check_work(self, work: list[Work], expected: list[Sequence], preempted: bool) -> None:
        sizes = [item.stop - item.start + len(item.draft) for item in work]
        chunks = [i for i, item in enumerate(work) if item.stop - item.start > 1]
        assert not any(item.decoding or item.draft for item in work[min(chunks, default=len(work)) :])
        assert sum(sizes) <= self.scheduler.max_step_tokens
        rows = [item.seq.slot for item in work]
        assert len(set(rows)) == len(rows) and None not in rows
        assert len(rows) + sum(len(item.draft) for item in work) <= self.scheduler.max_batch
        planned = {item.seq for item in work}
        assert preempted or set(expected) <= planned, "whoever can decode does"
        for seq in self.scheduler.entered:
            matched = next(item.start for item in work if item.seq is seq)
            assert matched % PAGE == 0 and matched <= seq.reusable
            self.stops[seq] = matched
        self.scheduler.entered.clear()
        for item in work:
            assert item.start == self.stops[item.seq] < item.stop, "each position is computed once"
            assert not item.decoding or item.stop == item.start + 1
            self.stops[item.seq] = item.stop
        holders = Counter(page for seq in self.scheduler.running for page in seq.pages)
        written = [item.seq.pages[at // PAGE] for item in work for at in range(item.start, item.stop + len(item.draft))]
        assert all(holders[page] == 1 for page in written if self.fresh(page)), "nobody writes to a shared page"

    def fresh(self, page: int) -> bool:
        return page not in self.scheduler.pool._hash_of

    @invariant()
    def pages_add_up(self) -> None:
        self.scheduler.check()
        shared = Counter(page for seq in self.scheduler.running for page in seq.pages)
        published = self.scheduler.pool._hash_of
        assert all(page in published for page, count in shared.items() if count > 1)
        assert len(self.scheduler.running) <= self.scheduler.max_batch

    def teardown(self) -> None:
        """No sequence starves, and nothing is held once all have ended."""
        left = sum(seq.limit for seq in self.open)
        for _ in range(20 * left + 20):
            self.step()
            self.pages_add_up()
            if not self.open and not self.pending:
                break
        assert not self.open, "a sequence starves"
        assert self.scheduler.pool.used == 0 and self.scheduler.pool.free == self.scheduler.pool.total - 1


Serving.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestServing = Serving.TestCase


def test_leaps_of_many_steps_happen() -> None:
    """What the state machine holds against single steps: with pages to allocate, to publish and to evict."""
    machine = Serving()
    machine.start(pages=14, batch=2, budget=20, reuse=True)
    machine.device.ends = False
    for round in range(4):
        asked = [machine.ask([7] * (5 + round), 18), machine.ask([7] * 5, 20), machine.ask([8] * 3, 4)]
        while not all(seq.done for seq in asked):
            machine.step()
            machine.leap(20)
    assert max(machine.leaps) > 12 and sum(machine.leaps.values()) > 60
    machine.teardown()


def test_shortage_preempts_the_youngest_and_keeps_its_answer() -> None:
    machine = Serving()
    machine.start(pages=6, batch=3, budget=20, reuse=True)
    for first in (7, 8, 9):
        machine.ask([first] * 4, 15, False)
    order: deque[Sequence] = deque()
    for _ in range(200):
        before = list(machine.open)
        machine.step()
        order += [seq for seq in before if seq not in machine.open]
    assert machine.scheduler.preemptions > 0
    assert len(order) == 3
    machine.teardown()


@pytest.mark.parametrize("reuse", [True, False])
def test_a_known_prefix_is_not_computed_again(reuse: bool) -> None:
    machine = Serving()
    machine.start(pages=14, batch=2, budget=20, reuse=reuse)
    for _ in range(2):
        machine.ask([7] * 13, 2)
        for _ in range(8):
            machine.step()
    assert machine.scheduler.prefix_hit_tokens == (12 if reuse else 0)
    machine.teardown()


def test_the_lowest_priority_goes_first_and_of_equals_the_first() -> None:
    machine = Serving()
    machine.start(pages=14, batch=1, budget=20, reuse=False)
    asked = {name: machine.ask([7] * 3, 1, priority=name[0]) for name in ((2, "a"), (0, "b"), (2, "c"), (-5, "d"))}
    order = []
    while machine.open:
        machine.step()
        order += [name for name, seq in asked.items() if seq.slot is not None and name not in order]
    assert [name for _, name in order] == ["d", "b", "a", "c"]


def test_what_was_begun_elsewhere_goes_first_in_its_class_and_is_not_charged_again() -> None:
    machine = Serving()
    machine.start(pages=14, batch=1, budget=20, reuse=False)
    machine.ask([7] * 3, 1)
    machine.step()  # it has the slot
    asked = [machine.ask([7] * 3, 1), machine.ask([7] * 3, 1, moved=True), machine.ask([7] * 3, 1, priority=-1)]
    assert machine.scheduler.waiting == [asked[2], asked[1], asked[0]]
    served = asked[0].account.served
    while machine.open:
        machine.step()
    assert asked[0].account.served - served == 3 + 3, "the prompts of the two others: nothing follows a last token"
    machine.teardown()


def test_the_background_gives_its_place_up_and_takes_it_again() -> None:
    machine = Serving()
    machine.start(pages=14, batch=2, budget=20, reuse=True)
    background = [machine.ask([7] * 5, 20, caller=BACKGROUND) for _ in range(2)]
    for _ in range(3):
        machine.step()
    assert machine.scheduler.running == background
    asked = machine.ask([8] * 5, 2)
    machine.step()
    assert machine.scheduler.running == [background[0], asked], "at once, from the last of them"
    machine.teardown()


def test_the_background_has_what_is_left_of_a_step() -> None:
    machine = Serving()
    machine.start(pages=14, batch=4, budget=6, reuse=False)
    background = machine.ask([7], 20, caller=BACKGROUND)
    for _ in range(2):
        machine.step()
    assert background.decoding
    asked = machine.ask([8] * 13, 2)
    took = []
    for _ in range(3):
        machine.step()
        took.append([item.seq for item, _ in machine.pending])
    assert took == [[asked], [asked], [background, asked]], "12 tokens, and then one of 6"
    machine.teardown()


def test_pages_that_are_needed_come_from_the_background_first() -> None:
    machine = Serving()
    machine.start(pages=9, batch=3, budget=20, reuse=False)
    machine.device.ends = False
    asked = machine.ask([8] * 4, 12)
    background = machine.ask([7] * 8, 8, caller=BACKGROUND)
    machine.step()
    younger = machine.ask([9] * 4, 12)
    lost = set()
    while younger in machine.open or asked in machine.open:
        machine.step()
        lost |= {seq for seq in (asked, younger, background) if seq in machine.scheduler.waiting}
    assert lost == {background}
    machine.teardown()


def test_right_drafts_count_and_wrong_ones_leave_nothing() -> None:
    """Pages end within a draft; others find only what was accepted."""
    accepted = 0
    for seed in range(20):
        machine, dice = Serving(), random.Random(seed)
        machine.start(pages=14, batch=4, budget=20, reuse=True)
        for _ in range(2):
            machine.ask([7] * (5 + seed), 20)
            for _ in range(6):
                machine.step_with_drafts(dice)
        accepted += machine.accepted
        machine.teardown()
    assert accepted > 20
