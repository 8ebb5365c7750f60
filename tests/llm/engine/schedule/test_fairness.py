"""Callers share an engine: whose turn it is, in steps and tokens, and who is let in, by a clock of the test's."""

from collections import Counter

import pytest

from apps.llm.api import Caller, LimitReached, QueueFull
from apps.llm.engine.fairness import backlog
from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.text.admission import Admission, CallerState
from ray_configs.applications.callers import CallerConfig
from tests.llm.engine.schedule.test_scheduler import Serving

ALICE, BOB, CAROL = Caller("alice"), Caller("bob"), Caller("carol")


def serving(weights: dict[str, float] | None = None, batch: int = 4, budget: int = 16, pages: int = 200) -> Serving:
    machine = Serving()
    machine.start(pages=pages, batch=batch, budget=budget, reuse=True)
    machine.scheduler.weights.update(weights or {})
    machine.device.ends = False
    return machine


def flood(machine: Serving, caller: Caller, requests: int, prompt: int = 8, answer: int = 12) -> list[Sequence]:
    """Requests whose prompts share nothing."""
    return [machine.ask([i // 50, i % 50, *[7] * (prompt - 2)], answer, caller=caller) for i in range(requests)]


def tokens(machine: Serving, steps: int) -> Counter[str]:
    """Computed in so many steps, by caller."""
    computed: Counter[str] = Counter()
    for _ in range(steps):
        machine.step()
        computed.update({item.seq: item.stop - item.start for item, _ in machine.pending})
    by_name: Counter[str] = Counter()
    for seq, count in computed.items():
        by_name[seq.request.caller.name] += count
    return by_name


@pytest.mark.parametrize("weight", [1, 3])
@pytest.mark.parametrize("shape", [(8, 12), (60, 2), (3, 40)], ids=["both", "prompts", "answers"])
def test_tokens_are_shared_by_weight(weight: int, shape: tuple[int, int]) -> None:
    machine = serving({"bob": weight})
    flood(machine, ALICE, 300, *shape)
    flood(machine, BOB, 300, *shape)
    shared = tokens(machine, 500)
    assert shared["bob"] / shared["alice"] == pytest.approx(weight, rel=0.1)


def test_shares_do_not_depend_on_how_much_one_asks_for() -> None:
    machine = serving()
    flood(machine, ALICE, 200, prompt=60, answer=2)  # large prompts
    flood(machine, BOB, 200, prompt=4, answer=20)
    shared = tokens(machine, 300)
    assert shared["bob"] / shared["alice"] == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("shape", [(4, 150), (150, 4)], ids=["answers", "prompts"])
def test_a_flood_does_not_delay_another_callers_request(shape: tuple[int, int]) -> None:
    machine = serving()
    flood(machine, ALICE, 100, *shape)
    for _ in range(20):
        machine.step()
    for _ in range(10):
        asked = machine.ask([9] * 6, 3, caller=BOB)
        machine.step()
        assert asked.slot is not None and asked.unread, "its prompt is in the first step after it came"
        while asked in machine.open:
            machine.step()
        for _ in range(5):
            machine.step()


def _prefill(machine: Serving) -> int:
    """Tokens of prompts in the next step."""
    machine.step()
    return sum(item.stop - item.start for item, _ in machine.pending if not item.decoding)


def test_a_first_token_does_not_wait_for_the_prompts_of_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "RECENT_STEPS", 60)
    machine = serving(budget=64)
    flood(machine, ALICE, 200, prompt=50, answer=2)
    for _ in range(20):
        machine.step()
    asked = machine.ask([9] * 6, 2, caller=BOB)
    machine.step()
    prefill = {item.seq: item.stop - item.start for item, _ in machine.pending if not item.decoding}
    assert prefill == {asked: 6}, "though the step had room"
    prefills = [_prefill(machine) for _ in range(55)]
    assert max(prefills) <= 64 // backlog.PREFILL_DIVISOR, "while others are about, a part of each step"
    assert sum(prefills[:30]) > 0.8 * 30 * 64 // backlog.PREFILL_DIVISOR, "which it has all the time"
    assert max(_prefill(machine) for _ in range(20)) > 64 // 2, "and alone again, as much as there is"


def test_places_are_shared_and_the_flood_gets_its_own_back() -> None:
    machine = serving(batch=6)
    flooded = flood(machine, ALICE, 10, answer=100)
    for _ in range(10):
        machine.step()
    asked = flood(machine, BOB, 10, answer=20)
    for _ in range(10):
        machine.step()
    running = Counter(seq.request.caller.name for seq in machine.scheduler.running)
    assert running == {"alice": 3, "bob": 3}
    assert machine.scheduler.preemptions == 3, "no place goes back and forth"
    while set(asked) & set(machine.open):
        machine.step()
    machine.step()
    assert sum(seq.slot is not None for seq in flooded if seq in machine.open) == 6
    machine.teardown()  # every preempted one ends, with the tokens that it would have had


def test_pages_come_from_the_one_that_holds_most() -> None:
    machine = serving(batch=6, pages=40)
    flood(machine, ALICE, 6, prompt=8, answer=60)
    asked = machine.ask([9] * 20, 40, caller=BOB)
    lost = set()
    while asked in machine.open:
        machine.step()
        lost |= {seq.request.caller.name for seq in machine.scheduler.waiting if seq.hashes}
    assert lost == {"alice"}
    machine.teardown()


def test_priority_orders_one_callers_requests_and_no_others() -> None:
    machine = serving(batch=1)
    low, high = machine.ask([7], 1, caller=ALICE, priority=5), machine.ask([7], 1, caller=ALICE, priority=-5)
    other = machine.ask([7], 1, caller=BOB, priority=9)
    order: list[Sequence] = []
    while machine.open:
        machine.step()
        order += [item.seq for item, _ in machine.pending]
    assert order.index(high) < order.index(low)
    assert order.index(other) < order.index(low), "bob's turn comes, whatever the priorities"


def test_time_without_requests_gives_no_claim() -> None:
    machine = serving()
    flood(machine, ALICE, 300)
    tokens(machine, 200)
    flood(machine, BOB, 300)
    shared = tokens(machine, 100)
    assert shared["bob"] / shared["alice"] == pytest.approx(1, rel=0.2), "not what alice has had before, to catch up"


def test_who_has_had_more_does_not_start_anew_by_a_pause() -> None:
    machine = serving(batch=2)
    machine.ask([9] * 4, 150, caller=CAROL)  # there all the time
    prompt = machine.ask([7] * 300, 1, caller=ALICE)
    while prompt in machine.open:
        machine.step()
    before = tokens(machine, 20)
    flood(machine, ALICE, 50, prompt=20, answer=1)
    flood(machine, BOB, 50, prompt=20, answer=1)
    after = tokens(machine, 8)
    assert before["alice"] == 0 and after["bob"] > 2 * after["alice"]


def test_the_accounts_of_those_who_left_go() -> None:
    machine = serving()
    for i in range(50):
        machine.ask([7] * 5, 2, caller=Caller(address=f"10.0.0.{i}"))
        while machine.open:
            machine.step()
    assert len(machine.scheduler.accounts.of_class(background=False)) == 1


def admission(max_waiting: int = 100, **callers: CallerConfig) -> tuple[Admission, list[float]]:
    now = [1000.0]
    return Admission(callers, max_waiting, lambda: now[0]), now


def refusal(admission: Admission, caller: Caller, sequences: int = 1, tokens: int = 1) -> QueueFull:
    with pytest.raises(QueueFull) as refused:
        admission.admit(caller, sequences, tokens)
    return refused.value


def test_a_limit_of_requests() -> None:
    doors, _ = admission(alice=CallerConfig(max_requests=2))
    states = [doors.admit(ALICE, 5, 1) for _ in range(2)]
    error = refusal(doors, ALICE)
    assert isinstance(error, LimitReached) and error.field == "max_requests" and error.retry_after_s >= 1
    assert "alice has 2 requests open" in str(error) and "max_requests 2" in str(error)
    doors.admit(BOB, 1, 1)
    doors.admit(Caller("alice", background=True), 1, 1)
    states[0].request_ended()
    doors.admit(ALICE, 1, 1)
    assert doors.stats()["alice"].requests == 3 and doors.stats()["alice"].refused == 1


def test_a_limit_of_tokens_fills_with_time_and_may_be_overdrawn() -> None:
    doors, now = admission(alice=CallerConfig(tokens_per_minute=600))
    state = doors.admit(ALICE, 1, 500)
    doors.admit(ALICE, 1, 50)
    state.generated(250)  # 200 too many: the next token is there in 20.1 s
    error = refusal(doors, ALICE)
    assert isinstance(error, LimitReached) and error.field == "tokens_per_minute"
    assert "tokens_per_minute 600" in str(error) and error.retry_after_s == pytest.approx(20.1)
    now[0] += 20
    refusal(doors, ALICE)
    now[0] += 0.2
    doors.admit(ALICE, 1, 5000)  # more than a minute's: admitted, and paid for
    assert refusal(doors, ALICE).retry_after_s == pytest.approx(500, rel=0.01)
    now[0] += 3600
    doors.admit(ALICE, 1, 600)  # no more than a minute's are saved up
    assert refusal(doors, ALICE).retry_after_s == pytest.approx(0.1)
    doors.admit(BOB, 1, 10**6)
    doors.admit(BOB, 1, 10**6)


def test_addresses_have_limits_of_their_own_and_one_name() -> None:
    doors, now = admission(anonymous=CallerConfig(tokens_per_minute=60, max_requests=1))
    for i in range(3):
        caller = Caller(address=f"10.0.0.{i}")
        doors.admit(caller, 1, 60).request_ended()
        assert "anonymous" in str(refusal(doors, caller))
    assert list(doors.stats()) == ["anonymous"] and doors.stats()["anonymous"].tokens == 180
    now[0] += 60
    doors.admit(Caller(address="10.0.0.9"), 1, 1)
    assert len(doors._states) == 1


def exchange(*doors: Admission) -> None:
    """Each learns what all others use."""
    told = {str(number): each.use() for number, each in enumerate(doors)}
    for number, each in enumerate(doors):
        each.learn({name: used for name, used in told.items() if name != str(number)})


def test_requests_at_another_router_count() -> None:
    (here, _), (there, _) = (admission(alice=CallerConfig(max_requests=3)) for _ in range(2))
    exchange(here, there)
    opened = [there.admit(ALICE, 1, 1) for _ in range(2)]
    exchange(here, there)
    here.admit(ALICE, 1, 1)
    assert "alice has 3 requests open" in str(refusal(here, ALICE))
    for state in opened:
        state.request_ended()
    exchange(here, there)
    here.admit(ALICE, 1, 1)
    there.admit(ALICE, 1, 1)
    exchange(here, there)
    refusal(there, ALICE)
    here.learn({})  # the other router has ended
    here.admit(ALICE, 1, 1)
    here.admit(BOB, 1, 1)


def test_tokens_at_another_router_count_once() -> None:
    """As if one router had taken all of it: the bucket is the oracle."""
    limits = CallerConfig(tokens_per_minute=600)
    (here, now), (there, then), (one, at) = (admission(alice=limits) for _ in range(3))
    exchange(here, there)
    for spent_here, spent_there in ((100, 50), (0, 200), (30, 0), (0, 0), (300, 300)):
        for doors, tokens in ((here, spent_here), (there, spent_there), (one, spent_here + spent_there)):
            doors.admit(ALICE, 1, tokens).request_ended()
        exchange(here, there)
        for clock in (now, then, at):
            clock[0] += 3
        left = [doors.use()[ALICE].left for doors in (here, there, one)]
        assert left == pytest.approx([left[2]] * 3)
    waits = [refusal(doors, ALICE).retry_after_s for doors in (here, there, one)]
    assert waits == pytest.approx([waits[2]] * 3)


def test_a_router_that_comes_later_takes_over_what_is_left_and_not_the_history() -> None:
    limits = CallerConfig(tokens_per_minute=600)
    (here, now), (late, then) = (admission(alice=limits) for _ in range(2))
    for _ in range(50):
        here.admit(ALICE, 1, 500).request_ended()
        now[0] += 60
        then[0] += 60
    here.admit(ALICE, 1, 200)
    exchange(here, late)
    exchange(here, late)
    assert late.use()[ALICE].left == pytest.approx(400)
    late.admit(ALICE, 1, 50)
    exchange(here, late)
    assert here.use()[ALICE].left == late.use()[ALICE].left == pytest.approx(350)


def test_a_router_that_forgot_an_idle_caller_counts_from_nothing_again() -> None:
    limits = CallerConfig(tokens_per_minute=600)
    (here, now), (there, then) = (admission(alice=limits, carol=limits) for _ in range(2))
    there.admit(ALICE, 1, 500).request_ended()
    exchange(here, there)
    now[0], then[0] = now[0] + 60, then[0] + 60
    there.admit(CAROL, 1, 1)  # whoever comes first has the idle ones forgotten
    there.admit(ALICE, 1, 100)
    exchange(here, there)
    assert here.use()[ALICE].left == pytest.approx(500)


def waiting(doors: Admission, caller: Caller) -> list[CallerState]:
    """As many as are let in."""
    states: list[CallerState] = []
    try:
        while len(states) < 10_000:
            states.append(doors.admit(caller, 1, 1))
    except QueueFull as error:
        assert not isinstance(error, LimitReached) and error.retry_after_s == 1
    return states


def test_one_that_fills_the_queue_leaves_the_others_their_shares() -> None:
    doors, _ = admission(max_waiting=12, bob=CallerConfig(weight=2))
    flooded = waiting(doors, ALICE)
    assert len(flooded) == 12, "alone, it may have all of it"
    assert len(waiting(doors, BOB)) == 8
    assert len(waiting(doors, CAROL)) == 3
    error = refusal(doors, ALICE)
    assert "max_waiting 12" in str(error) and "12 of them alice's, whose share is 3" in str(error)
    refusal(doors, BOB)
    for state in flooded:
        state.left_queue()
    assert len(waiting(doors, ALICE)) == 3, "as the others: its share"


def test_the_background_does_not_fill_the_queue() -> None:
    doors, _ = admission(max_waiting=4)
    background = Caller("alice", background=True)
    assert len(waiting(doors, background)) == 4
    assert len(waiting(doors, BOB)) == 4
    refusal(doors, background)
