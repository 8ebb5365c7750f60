"""Drafts of a sequence's next tokens, and how many of them pay: plain Python, without a model."""

import random
from collections.abc import Sequence

import pytest

from apps.llm.engine.speculation.choice import DraftState, TurnTimes, lengths
from apps.llm.engine.speculation.drafter import AT_FIRST, GRAM, Drafter, grams


def of(prompt: Sequence[int], answer: Sequence[int] = ()) -> Drafter:
    drafter = Drafter(prompt, grams(prompt))
    for token in answer:
        drafter.take(token)
    return drafter


def test_what_followed_the_last_tokens_before() -> None:
    assert of([1, 2, 3, 4, 5, 6, 1, 2, 3]).draft(3) == [4, 5, 6]
    assert of([1, 2, 3, 4, 5, 6], [1, 2, 3]).draft(2) == [4, 5], "in the prompt"
    assert of([9], [1, 2, 3, 4, 5, 6, 1, 2, 3]).draft(2) == [4, 5], "in the answer"
    assert of([1, 2, 3], [4, 5, 6, 1, 2, 3]).draft(2) == [4, 5], "across both"
    assert of([1, 2, 3, 4, 1, 2, 3, 5], [1, 2, 3]).draft(1) == [4], "near the beginning, where nothing was lost yet"


def test_it_follows_what_is_read() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, -1]
    late, prompt = of(tokens[:6]), tokens[:6]
    late.follow(tokens, 8)
    late.follow(tokens, 10)
    late.follow(tokens, 10)
    assert late.draft(2) == of(prompt, tokens[6:10]).draft(2) == [5, 6]
    assert late.acceptance == of(prompt, tokens[6:10]).acceptance


def test_nothing_without_an_earlier_occurrence() -> None:
    for tokens in ([], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 1, 2, 5]):
        for cut in range(len(tokens) + 1):
            drafter = of(tokens[:cut], tokens[cut:])
            assert not drafter.guesses and drafter.draft(5) == []


def test_what_repeats_goes_on() -> None:
    assert of([9, 1, 2, 1, 2, 1, 2]).draft(7) == [1, 2, 1, 2, 1, 2, 1]
    assert of([5, 7, 7, 7, 7]).draft(4) == [7, 7, 7, 7]


def test_after_an_edit_it_finds_its_place_again() -> None:
    """Two records that begin alike: after a changed value the draft goes on in the same one, not in the last."""
    first, last = [1, 2, 3, 10, 4, 5, 6, 11, 7, 8, 9], [1, 2, 3, 20, 4, 5, 6, 21, 7, 8, 9]
    drafter = of([0, *first, *last, 0, 99], [0, *first[:3]])
    drafter.take(55)
    for token in first[4:7]:
        drafter.take(token)
    assert drafter.draft(4) == first[7:]


def test_every_draft_followed_its_gram_somewhere() -> None:
    dice = random.Random(0)
    guesses = right = 0
    for _ in range(60):
        tokens = [dice.randrange(3) for _ in range(dice.randrange(4))]
        drafter = of(tokens)
        for _ in range(120):
            token = dice.choice([0, 0, 0, 1, 2])
            last = tokens[-GRAM:]
            before = {
                tokens[i + GRAM]
                for i in range(len(tokens) - GRAM)
                if len(last) == GRAM and tokens[i : i + GRAM] == last
            }
            draft = drafter.draft(3)
            assert bool(draft) == drafter.guesses == bool(before)
            if draft:
                assert len(draft) == 3 and draft[0] in before
                guesses, right = guesses + 1, right + (draft[0] == token)
            drafter.take(token)
            tokens.append(token)
    assert 0.3 < right / guesses < 0.7


def test_the_rate_follows_the_last_guesses() -> None:
    drafter = of([1, 2, 3, 4] * 3, [1, 2, 3, 4] * 10)
    assert drafter.acceptance > 0.95
    dice = random.Random(0)
    for _ in range(400):
        drafter.take(dice.randrange(4))
    assert drafter.acceptance < 0.6
    silent = of(range(100), range(100, 200))
    assert silent.acceptance == AT_FIRST, "who guesses nothing is not wrong"


FLAT = TurnTimes({8: 0.010, 16: 0.010, 32: 0.010})
STEEP = TurnTimes({8: 0.010, 16: 0.020, 32: 0.040})
SURE, FAIR, POOR = DraftState(0.98, 15), DraftState(0.6, 15), DraftState(0.15, 15)


@pytest.mark.parametrize("in_flight", [False, True])
def test_lengths(in_flight: bool) -> None:
    def chosen(drafting: list[DraftState], decodes: int, spare: int, turn_times: TurnTimes) -> list[int]:
        return lengths(drafting, decodes, spare, turn_times, in_flight)

    assert chosen([SURE], 1, 31, FLAT) == [15]
    assert chosen([SURE], 1, 31, STEEP) == [7], "the rows that the smallest step has anyway"
    assert chosen([SURE], 1, 3, FLAT) == [3], "as many as are left"
    assert chosen([SURE], 8, 0, FLAT) == [0]
    assert chosen([], 8, 24, FLAT) == []
    assert chosen([DraftState(0.98, 0), DraftState(0.98, -1)], 2, 30, FLAT) == [0, 0], "at its limit"
    assert chosen([FAIR, DraftState(0.5, 15)], 2, 3, FLAT) == [2, 1], "the likeliest first"
    assert chosen([POOR], 16, 16, STEEP) == [0], "a larger step for a seventh of a token"


def test_a_larger_step_is_taken_where_it_pays() -> None:
    slow = TurnTimes({8: 0.010, 16: 0.011, 32: 0.012})
    assert sum(lengths([SURE] * 8, 8, 24, slow, True)) == 24
    assert sum(lengths([FAIR], 8, 24, slow, True)) == 0
    assert sum(lengths([POOR] * 8, 8, 24, slow, True)) == 0
    twice = TurnTimes({8: 0.010, 16: 0.014, 32: 0.020})
    assert sum(lengths([SURE] * 8, 8, 24, twice, True)) == 24, "three more tokens for each in twice the time"
    assert sum(lengths([FAIR] * 8, 8, 24, twice, True)) == 0, "less than one more for each"


def test_a_slow_host_is_waited_for_only_where_it_pays() -> None:
    turn_times = TurnTimes({8: 0.010})
    assert lengths([FAIR], 1, 7, turn_times, True) != [0]
    for _ in range(200):
        turn_times.note(1, False, 0.010, 0.010)
    assert lengths([DraftState(0.45, 15)], 1, 7, turn_times, True) == [0], "each turn would take twice as long"
    assert lengths([SURE], 1, 7, turn_times, True) == [7]


def test_no_step_is_quicker_than_a_smaller_one() -> None:
    turn_times = TurnTimes({8: 0.010, 16: 0.007, 24: 0.020})
    for reads_first in (False, True):
        seconds = [turn_times.turn_s(rows, reads_first) for rows in (1, 8, 9, 16, 17, 24)]
        assert seconds == [0.01, 0.01, 0.01, 0.01, 0.02, 0.02]
    assert turn_times.most_rows == 24


def test_what_turns_really_take_counts_and_fades() -> None:
    turn_times = TurnTimes({8: 0.010, 16: 0.010})
    assert lengths([SURE] * 8, 8, 8, turn_times, True) == [1] * 8
    turn_times.note(16, True, 5.0, 0.0)
    assert lengths([SURE] * 8, 8, 8, turn_times, True) == [1] * 8, "a stall is no rule"
    for _ in range(30):
        turn_times.note(16, True, 0.030, 0.0)
    assert lengths([SURE] * 8, 8, 8, turn_times, True) == [0] * 8
    assert lengths([SURE], 1, 7, turn_times, True) == [7], "smaller steps are as quick as before"
    turns = 0
    while lengths([SURE] * 8, 8, 8, turn_times, True) == [0] * 8:
        turn_times.note(8, False, 0.010, 0.0)
        turns += 1
    assert 100 < turns < 2000, "tried again, and seldom"
    turn_times.note(17, True, 1.0, 1.0)
    assert turn_times.host_s < 0.001, "a step larger than drafts are for says nothing"
