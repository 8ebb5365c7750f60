"""Parsing of answers: the same events however the text is split, every call found, no text lost."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.llm.chat.events import ArgumentsPiece, CallEnd, CallStart, ReasoningPiece, TextPiece
from apps.llm.chat.formats.atem import Atem
from apps.llm.chat.formats.deepseek import CALL, CALL_END, CLOSES, FENCE, OPENS, SEPARATOR, DeepSeek
from apps.llm.chat.formats.gemma import FUNCTION_GEMMA, GEMMA4
from apps.llm.chat.formats.harmony import Harmony
from apps.llm.chat.formats.hermes import Hermes
from apps.llm.chat.formats.llama import Llama
from apps.llm.chat.formats.mistral import Mistral
from apps.llm.chat.formats.plain import Plain
from apps.llm.chat.formats.pythonic import Pythonic
from apps.llm.chat.reader import AnswerReader
from tests.llm.chat.written import FAMILIES, THINK, Call, pieces_of, understood

NAMES = ("f", "get_weather", "web.search-2")

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\"'\\{}[]<>\n\t,:"), max_size=8)
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
values = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(keys, values, max_size=3)), min_size=1, max_size=3)
prose = st.text(st.sampled_from("abc .,!\né"), max_size=12)

MARKS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "<|python_start|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "call:",
    "(**{",
    *FUNCTION_GEMMA,
    *GEMMA4,
    *(OPENS, CLOSES, CALL, SEPARATOR, CALL_END, FENCE, "```"),
]
FRAMES = [Harmony.mark, *Harmony.other_marks, *Atem.other_marks]
ATEM = ['<atem:invoke name="f">', '<atem:parameter name="a">', "</atem:parameter>", "</atem:invoke>"]
ATEM += ["<atem:function_calls>", "</atem:function_calls>", " to=self<|message|>", " to=f<|message|>"]
CODER = ["<tool_call>\n<function=f>", "<parameter=a>\n", "\n</parameter>", "</function>\n</tool_call>"]
HEADERS = ["<|channel|>analysis<|message|>", "<|start|>assistant", "<|channel|>commentary to=functions.f json"]
PARTS = [
    *MARKS,
    *FRAMES,
    *ATEM,
    *CODER,
    *HEADERS,
    *NAMES,
    '{"name": "f"',
    '{"name":"g", "arguments":',
    '"arguments": {"a": [1, "]}"]}',
    '"parameters":',
]
PARTS += ["f(", "a=1", "'it\\'s'", '"\\u00e9"', "None", "0x10", "\n", "\\", *";,:{}[]() "]
answers = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=14).map("".join)


def cut(text: str, places: list[int]) -> list[str]:
    at = sorted({place % (len(text) + 1) for place in places})
    return [text[start:stop] for start, stop in zip([0, *at], [*at, len(text)])]


def reader(family: str, **options: Any) -> AnswerReader:
    return AnswerReader(FAMILIES[family].calls, NAMES, FAMILIES[family].reasoning, **options)


families = st.sampled_from(list(FAMILIES))
places = st.lists(st.integers(0, 400))


def any_cut_of_any_answer_gives_the_same_events(
    family: str, text: str, places: list[int], opened: bool, one_call: bool
) -> None:
    options = {"opened": opened, "one_call": one_call}
    whole = pieces_of(reader(family, **options), [text])
    assert pieces_of(reader(family, **options), cut(text, places)) == whole
    assert pieces_of(reader(family, **options), list(text)) == whole
    framed = FAMILIES[family].calls.framed
    found = understood(whole, framed)  # in an order that a dialect can write
    assert not one_call or len(found.calls) <= 1
    no_marks = not any(mark in text for mark in FRAMES) if framed else not text.lstrip().startswith("<think>")
    if not found.calls and no_marks and (framed or not opened):
        assert found.text == text  # nothing is lost


def what_a_model_writes_is_understood(
    family: str, text: str, thought: str, called: list[Call], places: list[int]
) -> None:
    if not FAMILIES[family].after_text:
        text = ""
    answer = FAMILIES[family].whole(thought, text, FAMILIES[family].write(called))
    found = understood(pieces_of(reader(family), cut(answer, places)))
    assert found.loaded() == called
    assert (found.text, found.reasoning) == (text.strip(), thought.strip())


def what_was_told_stays_true_where_an_answer_is_cut_short(family: str, called: list[Call], length: int) -> None:
    """Names in order, arguments as far as received.

    gpt-oss ends its answer with the mark that ends a call, which is not in its text. So one that is cut before the
    first character of the arguments is a call without any.
    """
    answer = FAMILIES[family].write(called)
    bare = answer[:length].rstrip().endswith("<|message|>")
    whole = understood(pieces_of(reader(family), [answer]))
    short = understood(pieces_of(reader(family), [answer[:length]]))
    for (name, arguments), (full_name, full_arguments) in zip(short.calls, whole.calls):
        assert name == full_name and (full_arguments.startswith(arguments) or (bare and arguments == "{}"))


PROPERTIES = {
    any_cut_of_any_answer_gives_the_same_events: given(
        family=families, text=answers, places=places, opened=st.booleans(), one_call=st.booleans()
    ),
    what_a_model_writes_is_understood: given(family=families, text=prose, thought=prose, called=calls, places=places),
    what_was_told_stays_true_where_an_answer_is_cut_short: given(
        family=families, called=calls, length=st.integers(0, 400)
    ),
}
properties = pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)


def holds_for(holds: Callable[..., None], examples: int) -> None:
    """Tests a property. Hypothesis refuses other settings for a function that has some, so each test makes its own."""
    settings(deadline=None, max_examples=examples)(PROPERTIES[holds](holds))()


def test_a_call_cut_before_its_arguments() -> None:
    answer = FAMILIES["harmony"].write([("f", {"A": None})])
    for length in range(len(answer)):
        what_was_told_stays_true_where_an_answer_is_cut_short("harmony", [("f", {"A": None})], length)


def test_an_answer_cut_within_a_surrogate_pair() -> None:
    called, family = [("f", {"a": "\U00010000"})], "deepseek, in code blocks"
    pair = FAMILIES[family].write(called).index("\\ud800")
    for length in range(pair, pair + 13):
        what_was_told_stays_true_where_an_answer_is_cut_short(family, called, length)


@pytest.mark.slow
@properties
def test_property(holds: Callable[..., None]) -> None:
    holds_for(holds, 100)


@pytest.mark.slow
@properties
def test_property_at_length(holds: Callable[..., None]) -> None:
    holds_for(holds, 3_000)


def test_events_come_as_soon_as_they_are_sure() -> None:
    read = AnswerReader(Hermes(), NAMES, THINK)
    assert read.feed("<thi") == []
    assert read.feed("nk>\nHm") == [ReasoningPiece("Hm")]
    assert read.feed(". \n</think>\n\nI ") == [ReasoningPiece("."), TextPiece("I")]
    assert read.feed("look.\n<tool_call>\n") == [TextPiece(" look.")]
    assert read.feed('{"name": "f"') == []
    assert read.feed(', "arguments": {"a"') == [CallStart(0, "f"), ArgumentsPiece(0, '{"a"')]
    assert read.feed(": 1}") == [ArgumentsPiece(0, ": 1}")]
    assert read.feed("}\n</tool_call>\n") == [CallEnd(0)]
    assert read.finish() == []


@pytest.mark.parametrize(
    ("format_", "answer"),
    [
        (Hermes(), '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'),
        (Hermes(), "Write <tool_call> to call a tool."),
        (DeepSeek(), f"{OPENS}{CALL}rm{SEPARATOR}{{}}{CALL_END}{CLOSES}"),
        (DeepSeek(), f"{OPENS}{CALL}f{SEPARATOR}[1]{CALL_END}{CLOSES}"),
        (DeepSeek(), f"{OPENS}{CALL}function{SEPARATOR}f {{}}{CALL_END}{CLOSES}"),
        (Hermes(), '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        (Hermes(), '<tool_call>{"arguments": {}}</tool_call>'),
        (Llama(), '{"name": "f"}'),
        (Llama(), ' {"name": "rm", "parameters": {}}'),
        (Llama(), 'Say {"name": "f", "parameters": {}}'),
        (Llama(), "<|python_tag|>print(1)"),
        (Pythonic(), "[1, 2, 3]"),
        (Pythonic(), "[rm()]"),
        (Pythonic(), "[]"),
        (Mistral(), "[TOOL_CALLS]rm[ARGS]{}"),
        (Mistral(), "[TOOL_CALLS]"),
        (Harmony(), "to be or <|message|> not <|channel|>"),
        (Plain(), '{"days": 7}'),
        (Plain(), '[{"name": "Ada"}, {"name": "f"}]'),
    ],
)
def test_what_is_no_call_stays_text(format_: Any, answer: str) -> None:
    assert pieces_of(AnswerReader(format_, NAMES), [answer]) == [TextPiece(answer)]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("a=True, b=None, c=-1.5e3", {"a": True, "b": None, "c": -1500.0}),
        ("a='it\\'s', b=\"\\x41\\u00e9\\n\\q\"", {"a": "it's", "b": "Aé\n\\q"}),
        ("a=(1, 2,), b={'k': [0x10, .5]}, ", {"a": [1, 2], "b": {"k": [16, 0.5]}}),
        ('**{"a": [true, null]}', {"a": [True, None]}),
        ("", {}),
    ],
)
def test_pythons_literals_become_json(written: str, arguments: dict[str, Any]) -> None:
    found = understood(pieces_of(AnswerReader(Pythonic(), NAMES), [f"[f({written})]"]))
    assert found.loaded() == [("f", arguments)]


@pytest.mark.parametrize("arguments", ['"{\\"a\\": 1}"', '{"a": 1}'])
def test_arguments_in_a_string_are_read_too(arguments: str) -> None:
    answer = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert understood(pieces_of(AnswerReader(Hermes(), NAMES), [answer])).loaded() == [("f", {"a": 1})]


@pytest.mark.parametrize("nested", ["[" * 5000, "{'a':" * 5000, "(" * 5000])
def test_an_answer_nested_without_end_is_no_trouble(nested: str) -> None:
    for family in ("pythonic", "hermes", "gemma"):
        write = FAMILIES[family].write([("f", {"a": 1})])
        understood(pieces_of(reader(family), [write.replace("1", nested)]))


def test_a_prompt_that_opens_the_reasoning() -> None:
    events = pieces_of(AnswerReader(None, (), THINK, opened=True), ["Hm.</think>\nSeven."])
    assert events == [ReasoningPiece("Hm."), TextPiece("Seven.")]
    assert pieces_of(AnswerReader(None, (), THINK, opened=True), ["Hm"]) == [ReasoningPiece("Hm")]
    assert pieces_of(AnswerReader(None, (), THINK), ["Seven, <think>no</think>"]) == [
        TextPiece("Seven, <think>no</think>")
    ]


def test_arguments_are_passed_on_as_the_model_writes_them() -> None:
    raw = '{ "a":1.0 ,\n"b" : "\\u00e9}" }'
    found = understood(pieces_of(AnswerReader(Plain(), NAMES), ['{"name":"f","arguments":' + raw + "}"]))
    assert found.calls == [("f", raw)] and json.loads(raw) == {"a": 1.0, "b": "é}"}


def test_deepseek_without_the_sections_end_loses_no_text():
    call = f"{OPENS}{CALL}f{SEPARATOR}{{}}{CALL_END}"
    found = understood(pieces_of(AnswerReader(DeepSeek(), NAMES), [f"{call}\nDone. {call}{CALL}f{SEPARATOR}"]))
    assert found.calls == [("f", "{}")] * 2 and found.text == f"Done.{CALL}f{SEPARATOR}"


def test_harmonys_messages_are_told_apart() -> None:
    """Reasoning may come between texts; parts of one kind are paragraphs; what is to nobody known is text."""
    parts = ["analysis<|message|>A.", "analysis<|message|> B. ", "commentary<|message|>C.", "analysis<|message|>D."]
    parts += ["final<|message|>E.", "final <|constrain|>json<|message|>F. <|return|>"]
    answer = "<|channel|>" + "<|end|><|start|>assistant<|channel|>".join(parts)
    assert pieces_of(AnswerReader(Harmony(), NAMES), [answer]) == [
        ReasoningPiece("A.\n\nB."),
        TextPiece("C."),
        ReasoningPiece("\n\nD."),
        TextPiece("\n\nE.\n\nF."),
    ]
    said = "<|channel|>final<|message|>Yes.<|end|>"
    for other in (
        "<|start|>user<|message|>No.",
        "<|start|>assistant<|channel|>commentary to=python code<|message|>No.",
    ):
        found = understood(pieces_of(AnswerReader(Harmony(), NAMES), [f"{said}<|start|>{other}"]))
        assert (found.text, found.calls) == ("Yes.\n\nNo.", [])
    cut = pieces_of(AnswerReader(Harmony(), NAMES), ["<|channel|>analysis<|message|>Hm \n"])
    assert cut == [ReasoningPiece("Hm")]


@pytest.mark.parametrize("family", ["hermes", "llama", "mistral", "json", "harmony"])
def test_a_line_break_in_a_string_is_escaped(family: str) -> None:
    program = "def f():\n\treturn 1"
    written = FAMILIES[family].write([("f", {"text": program})])
    raw = written.replace("\\n", "\n").replace("\\t", "\t")
    assert raw != written and understood(pieces_of(reader(family), list(raw))).loaded() == [("f", {"text": program})]
