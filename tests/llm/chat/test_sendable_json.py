"""Arguments that a model writes are JSON that any client can read, however they are split.

Oracles: Python's parser for what the JSON means, its UTF-16 codec for halves of surrogate pairs, and jiter, which is
strict.
"""

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from apps.llm.chat.formats.gemma import GEMMA4, Gemma
from apps.llm.chat.formats.hermes import Hermes
from apps.llm.chat.formats.pythonic import Pythonic
from apps.llm.chat.reader import AnswerReader
from apps.llm.chat.sendable_json import Sendable, mended
from tests.llm.chat.written import pieces_of, understood

ESCAPES = [
    r"\ud83d",
    r"\ude00",
    r"\uDBFF",
    r"\udfff",
    r"\u00e9",
    r"\u0000",
    r"\\",
    r"\"",
    r"\n",
    "u",
    "d83d",
    "\U0001f600",
    "é",
]
strings = st.lists(st.sampled_from(ESCAPES), max_size=7).map(lambda parts: '"' + "".join(parts) + '"')
digits = st.text("0123456789", min_size=1, max_size=4).map(lambda text: str(int(text)))
floats = st.tuples(st.sampled_from(["", "-"]), digits, st.sampled_from(["e", "E+", ".5e", "e-", "."]), digits).map(
    "".join
)
numbers = st.sampled_from(["NaN", "Infinity", "-Infinity", "0", "-0", "9" * 400, "9" * 5000]) | digits | floats
values = st.recursive(
    strings | numbers | st.sampled_from(["true", "false", "null"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | st.lists(st.tuples(strings, inner).map(": ".join), max_size=3).map(lambda parts: f"{{{','.join(parts)}}}")
    ),
    max_leaves=6,
)


def cleaned(*pieces: str) -> str:
    cleaner = Sendable()
    return "".join(map(cleaner.feed, pieces)) + cleaner.rest()


def meant(value: Any) -> Any:
    """What Python read, without what it alone can read."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(sys.float_info.max, value)
    if isinstance(value, list):
        return list(map(meant, value))
    return {meant(key): meant(each) for key, each in value.items()} if isinstance(value, dict) else value


@given(text=values, places=st.lists(st.integers(0, 400)))
def test_any_json_is_sent_as_what_it_means(text: str, places: list[int]) -> None:
    at = sorted({place % (len(text) + 1) for place in places})
    sent = cleaned(text)
    assert cleaned(*(text[start:stop] for start, stop in zip([0, *at], [*at, len(text)]))) == sent
    found = from_json(sent, allow_inf_nan=False)
    read = json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 300 else float(digits))
    assert found == meant(read) == mended(read)
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()


plain = (
    st.text('ab \\"\n\u00e9\U0001f600', max_size=6) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)


@given(value=st.recursive(plain | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_json_that_all_can_read_stays_as_it_is(value: Any) -> None:
    for ascii_ in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_)
        assert cleaned(text) == text


@given(text=st.text(st.sampled_from('"\\ud8e{}[]:,1NaN -.'), max_size=20))
def test_what_is_no_json_loses_nothing_but_halves_and_infinities(text: str) -> None:
    kept = cleaned(text)
    if not any(mark in text for mark in ("NaN", "\\ud8", "\\ude")):
        assert kept == text


@pytest.mark.parametrize(
    ("format_", "answer"),
    [
        (Hermes(), r'<tool_call>{"name": "f", "arguments": {"a": "\ud83d", "b": [NaN, 1e999]}}</tool_call>'),
        (Hermes(), r'<tool_call>{"arguments": {"a": "\ud83d", "b": [NaN, 1e999]}, "name": "f"}</tool_call>'),
        (Hermes(), r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\\ud83d\", \"b\": [NaN, 1e999]}"}</tool_call>'),
        (Pythonic(), r"""[f(**{'a': '\ud83d', 'b': [NaN, 1e999]})]"""),
        (Pythonic(), r"""[f(a='\U0000D83D', b=[NaN, 1e999])]"""),
        (Gemma(GEMMA4), r'<|tool_call>call:f{a:"\ud83d",b:[NaN,1e999]}<tool_call|>'),
    ],
)
def test_every_format_sends_what_can_be_read(format_: Any, answer: str) -> None:
    ((_, arguments),) = understood(pieces_of(AnswerReader(format_, ["f"]), list(answer))).calls or ()
    found = from_json(arguments, allow_inf_nan=False)
    assert found["a"] == "\ufffd" and found["b"][0] in (None, "NaN") and found["b"][1] == sys.float_info.max
