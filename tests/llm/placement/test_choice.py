"""Where requests go. That it pays is measured on traffic made here; on Mooncake's trace by `tools/route_trace.py`."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import tools.route_trace
from apps.llm.placement.choice import SLACK_TOKENS, CacheChoice, EngineLoad, home_of
from tools.route_trace import Arrival, least_loaded, missing_and_waiting, podslice, read, run

IDLE = {number: EngineLoad() for number in range(4)}


def names(*numbers: int) -> list[bytes]:
    return [number.to_bytes(8, "little") for number in numbers]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20_000), st.floats(0, 60)), min_size=1, max_size=60),
    st.sampled_from([1.0, 1.05, 1.5]),
)
def test_no_cache_gets_more_than_its_share(asked: list[tuple[int, int, float]], max_share: float) -> None:
    """Of the work of late: the bound times the mean, and the slack and one request on top."""
    choice, now = CacheChoice(4, 16, max_share), 0.0
    for kind, tokens, later in asked:
        now += later
        choice.choose(names(*range(kind * 1000, kind * 1000 + tokens // 16)), tokens, IDLE, now)
        work = choice._work
        longest = max(tokens for _, tokens, _ in asked)
        assert max(work) <= max_share * sum(work) / len(work) + SLACK_TOKENS + longest + 1e-6


def test_a_burst_with_a_new_prefix_goes_to_one_cache_until_it_has_its_share() -> None:
    choice = CacheChoice(2, 16, max_share=1e9)
    shared = names(*range(100))
    chosen = [
        choice.choose([*shared, *names(1000 + number)], 101 * 16, {0: EngineLoad(), 1: EngineLoad()}, 0.0)
        for number in range(8)
    ]
    assert len(set(chosen)) == 1


def test_a_full_engine_is_the_last_choice() -> None:
    choice, shared = CacheChoice(2, 16, max_share=1e9), names(*range(100))
    first = choice.choose(shared, 1600, {0: EngineLoad(), 1: EngineLoad()}, 0.0)
    loads = {number: EngineLoad(open=8, full=number == first) for number in range(2)}
    assert choice.choose(shared, 1600, loads, 0.0) == 1 - first


def test_without_prefixes_it_is_the_least_busy() -> None:
    choice = CacheChoice(4, 16, max_share=1e9)
    every = [EngineLoad(open=3), EngineLoad(open=1), EngineLoad(waiting=300, open=1), EngineLoad(open=2)]
    loads = dict(enumerate(every))
    assert choice.choose([], 10, loads, 0.0) == 1


NAMES = {number: f"replica {number}" for number in range(4)}


def test_a_session_has_the_same_home_for_all_and_keeps_it() -> None:
    """As routers in front of the same engines need it, and as sessions stick in Dynamo and SGLang's gateway. With one
    engine more, a session stays or goes to that one; its share is that of the others."""
    sessions = [f"session {number}" for number in range(400)]
    homes = [home_of(session, NAMES) for session in sessions]
    other_order = dict(enumerate(reversed(NAMES.values())))
    assert [other_order[home] for session in sessions if (home := home_of(session, other_order)) is not None] == [
        NAMES[home] for home in homes if home is not None
    ]
    later = [home_of(session, NAMES | {4: "replica 4"}) for session in sessions]
    moved = {(before, after) for before, after in zip(homes, later, strict=True) if before != after}
    assert {after for _, after in moved} == {4}
    assert all(60 <= later.count(home) <= 100 for home in range(5))  # of 400; within 2.5 deviations of the mean
    assert home_of("", NAMES) is None


def test_a_session_stays_at_home_while_that_pays() -> None:
    """At home, unless more waits there than a session is worth, or a cache is known to have the prompt."""
    choice = CacheChoice(4, 16, max_share=1e9)
    assert {choice.choose([], 10, IDLE, 0.0, home=2) for _ in range(20)} == {2}
    assert choice.choose([], 10, IDLE | {2: EngineLoad(open=8)}, 0.0, home=2) == 2
    assert choice.choose([], 10, IDLE | {2: EngineLoad(waiting=4096)}, 0.0, home=2) != 2
    assert choice.choose([], 10, IDLE | {2: EngineLoad(full=True)}, 0.0, home=2) != 2
    long = names(*range(100))
    elsewhere = choice.choose(long, 1600, {number: EngineLoad() for number in (0, 1, 3)}, 0.0)
    assert choice.choose(long, 1600, IDLE, 0.0, home=2) == elsewhere


def conversations(count: int, seed: int = 1) -> Iterable[Arrival]:
    """Turns of conversations that share a system prompt, of different lengths, in the order of their times."""
    draw, arrivals, fresh = random.Random(seed), [], iter(range(1, 10**9))
    for _ in range(count):
        at_s, blocks = draw.uniform(0, 3000), [0]
        for _ in range(draw.randrange(1, 7)):
            blocks += [next(fresh) for _ in range(draw.randrange(4, 40))]
            arrivals.append(Arrival(at_s, tuple(names(*blocks))))
            at_s += draw.expovariate(1 / 120)
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_conversations_find_their_prefix_and_the_load_stays_even(seed: int) -> None:
    trace = list(conversations(800, seed))
    ours, plain, least = (
        run(trace, policy, 8, 2000) for policy in (podslice(8, 1.05), missing_and_waiting(), least_loaded())
    )
    assert ours.hit_rate > 2 * least.hit_rate and ours.hit_rate > plain.hit_rate
    assert ours.load_share <= 1.05
    assert ours.wait_s(0.95) < 1.05 * least.wait_s(0.95)


@pytest.mark.slow
def test_host_memory_finds_what_the_devices_have_no_room_for() -> None:
    trace = list(conversations(800))
    with_host = run(trace, podslice(8, 1.05), 8, 500, host_blocks=2000, host_cost=0.1)
    without, large = (run(trace, podslice(8, 1.05), 8, blocks) for blocks in (500, 2000))
    assert with_host.hit_rate == pytest.approx(large.hit_rate, abs=0.02), "as if the devices had that room"
    assert with_host.hit_rate > 1.1 * without.hit_rate and without.host_hit_rate == 0 < with_host.host_hit_rate
    assert with_host.load_share <= 1.05 and with_host.wait_s(0.5) < without.wait_s(0.5)


def test_a_trace_is_read_and_a_bad_line_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = {"timestamp": 1500, "input_length": 600, "output_length": 1, "hash_ids": [0, 7]}
    path.write_text(json.dumps(line) + "\n")
    assert read(path) == [Arrival(0.0, tuple(names(0, 7)))], "from its first request on"
    path.write_text(json.dumps(line) + "\n{}\n")
    done = CliRunner().invoke(tools.route_trace.app, [str(path)])
    assert done.exit_code == 2 and "line 2" in done.output
