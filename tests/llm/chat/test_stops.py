"""Stop strings end an answer in its text alone. The oracle is the answer read without them, cut by hand."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.llm.chat.events import ArgumentsPiece, CallStart, ChatEvent, ReasoningPiece, TextPiece
from apps.llm.chat.reader import AnswerReader
from apps.llm.chat.stops import StopStrings
from tests.llm.chat.test_reader import NAMES, answers, cut, families, places
from tests.llm.chat.written import FAMILIES

stops = st.lists(st.text(st.sampled_from("abc{f\"'=<"), min_size=1, max_size=3), min_size=1, max_size=3)


def reader(family: str, **options: Any) -> AnswerReader:
    return AnswerReader(FAMILIES[family].calls, NAMES, FAMILIES[family].reasoning, **options)


def merged(events: list[ChatEvent]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for event in events:
        key: tuple[Any, ...] = (type(event), getattr(event, "index", None))
        if isinstance(event, TextPiece | ReasoningPiece | ArgumentsPiece):
            if found and found[-1][:2] == key:
                found[-1] = (*key, found[-1][2] + event.text)
            else:
                found.append((*key, event.text))
        else:
            found.append((*key, getattr(event, "name", None)))
    return found


def by_hand(whole: list[tuple[Any, ...]], stop: list[str], keep: bool) -> tuple[list[tuple[Any, ...]], str | None]:
    kept = []
    for event in whole:
        text = event[2] if event[0] is TextPiece else ""
        ends = [(at + len(s), at, s) for s in stop if (at := text.find(s)) >= 0]
        if ends:
            # The first that is complete ends it; of those complete at one letter, the one that began first.
            end, at, found = min(ends)
            text = text[: end if keep else at]
            return kept + ([(*event[:2], text)] if text else []), found
        kept.append(event)
    return kept, None


@settings(max_examples=60)
@given(families, answers, stops, st.booleans())
def test_the_text_is_cut_and_nothing_else(family: str, answer: str, stop: list[str], keep: bool) -> None:
    plain, one = reader(family), reader(family, stop=stop, keep_stop=keep)
    whole = merged(plain.feed(answer) + plain.finish())
    found: list[ChatEvent] = []
    for letter in answer:
        found += one.feed(letter)
    found += one.finish()
    assert (merged(found), one.stopped) == by_hand(whole, stop, keep)
    assert one.called == sum(isinstance(event, CallStart) for event in found)


@settings(max_examples=60)
@given(families, answers, stops, places)
def test_pieces_of_one_step_end_where_its_letters_would(
    family: str, answer: str, stop: list[str], where: list[int]
) -> None:
    """A server reads some tokens at once, the engine each: both end at the same letter."""
    letters, pieces = (reader(family, stop=stop) for _ in range(2))
    ends = merged([event for letter in answer for event in letters.feed(letter)] + letters.finish())
    assert merged([event for piece in cut(answer, where) for event in pieces.feed(piece)] + pieces.finish()) == ends


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lm_evals_stop_does_not_end_a_thought(size: int) -> None:
    """lm-eval's tasks stop at an empty line or at `Question:`, with which reasoning is full."""
    answer = "<think>\nStep one.\n\nQuestion: why?\n\n</think>\n\nIt is 42.\n\nQuestion: what?"
    one = reader("hermes", stop=["\n\n", "Question:"])
    found = [event for at in range(0, len(answer), size) for event in one.feed(answer[at : at + size])]
    assert merged(found + one.finish()) == [
        (ReasoningPiece, None, "Step one.\n\nQuestion: why?"),
        (TextPiece, None, "It is 42."),
    ]
    assert one.stopped == "\n\n"


def test_an_empty_line_ends_the_text_when_it_comes() -> None:
    one = reader("hermes", stop=["\n\n"])
    assert merged(one.feed("<think>a\n\nb</think>\n\nYes.\n")) and one.stopped is None
    assert one.feed("\n") == [] and one.stopped == "\n\n"


def test_the_stop_of_a_step_is_that_of_the_engine() -> None:
    text = StopStrings(["ab", "b"], keep=False)
    assert (text.feed("xa"), text.feed("b"), text.found, text.rest()) == ("x", "", "ab", "")
