"""Headers that gpt-oss writes and its format does not know. No part of one is shown; no call and no text is lost.

Each line is one that its users have reported, or one of the same kind. The oracle is the format's description: a header
is what stands before `<|message|>`, in whatever order; the rest of the message is its body.
"""

import pytest

from apps.llm.chat.events import ArgumentsPiece, CallStart, ReasoningPiece, TextPiece
from apps.llm.chat.formats.harmony import Harmony
from apps.llm.chat.reader import AnswerReader

C, M, E, S = "<|channel|>", "<|message|>", "<|end|>", "<|start|>assistant"
ARGUMENTS = '{"city": "Lyon"}'
CALLED = ("", "", [("f", ARGUMENTS)])
CASES = {
    # answer: (reasoning, text, calls)
    f"{C}analysis{M}Hm.{E}{S}{C}final{M}Hi.<|return|>": ("Hm.", "Hi.", []),
    f"{C}final {M}Hi.": ("", "Hi.", []),
    f"{C}final json{M}Hi.": ("", "Hi.", []),
    f"{C}final <|constrain|>json{M}Hi.": ("", "Hi.", []),
    f"{C}finale{M}Hi.": ("", "Hi.", []),
    f"{C}thought{M}Hi.": ("", "Hi.", []),
    f"{M}Hi.": ("", "Hi.", []),
    f"{C}analysis{M}Hm.{E}{S}{M}Hi.": ("Hm.", "Hi.", []),
    f"{C}analysis{M}Hm.{E}{S}<|start|>assistant{C}final{M}Hi.": ("Hm.", "Hi.", []),
    f"{C}analysis{M}Hm.{C}final{M}Hi.": ("Hm.", "Hi.", []),
    f"{C}analysis{M}Hm.{E}{C}final{M}Hi.": ("Hm.", "Hi.", []),
    f"{C}analysis{C}final{M}Hi.": ("Hi.", "", []),
    f"{C}final Hi.": ("", "Hi.", []),
    f"{C}final{M}Hi{M} there.": ("", "Hi there.", []),
    f"{C}final": ("", "", []),
    f"{C}fin": ("", "", []),
    f"{C}": ("", "", []),
    f"{C}analysis{M}Hm.{E}<|start|>assis": ("Hm.", "", []),
    f"{C}analysis{M}Hm.{E}{S}{C}": ("Hm.", "", []),
    "Hi.": ("", "Hi.", []),
    "to be": ("", "to be", []),
    "<|chat": ("", "<|chat", []),
    f"{C}commentary to=functions.f <|constrain|>json{M}{ARGUMENTS}<|call|>": CALLED,
    f" to=functions.f{C}commentary json{M}{ARGUMENTS}": CALLED,
    f"{C}commentaryto=functions.f json{M}{ARGUMENTS}": CALLED,
    f"{C}commentary to=functions.f<|constrain|>json{M}{ARGUMENTS}": CALLED,
    f"{C}commentary to=f{M}{ARGUMENTS}": CALLED,
    f"{C}commentary to= functions.f{M} {ARGUMENTS}": CALLED,
    f"{C}commentary json to=functions.f{M}{ARGUMENTS}": CALLED,
    f"{C}commentary to=functions.f {C}commentary json{M}{ARGUMENTS}": CALLED,
    f"{C}analysis to=functions.f code{M}{ARGUMENTS}": CALLED,
    f"{C}commentary to=functions.f{M}<|call|>": ("", "", [("f", "{}")]),
    f"{C}commentary to=functions.f{M}": ("", "", [("f", "{}")]),
    f"{C}commentary to=functions.g{M}{ARGUMENTS}<|call|>": ("", ARGUMENTS, []),
    f"{C}commentary to=functions.f{M}[1]": ("", "[1]", []),
    f"to be or {M} not {C}": ("", f"to be or {M} not {C}", []),
    f"{C}analysis to=python code{M}print(1)<|call|>": ("print(1)", "", []),
    f"{C}analysis{M}Hm.{E}{S} to=functions.f{C}commentary{M}{ARGUMENTS}<|call|>": ("Hm.", "", [("f", ARGUMENTS)]),
}


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("answer", CASES)
def test_no_part_of_a_header_is_shown(answer: str, size: int) -> None:
    reader = AnswerReader(Harmony(), ["f"])
    events = [event for at in range(0, len(answer), size) for event in reader.feed(answer[at : at + size])]
    events += reader.finish()
    texts = ["".join(e.text for e in events if isinstance(e, kind)) for kind in (ReasoningPiece, TextPiece)]
    calls = [
        (call.name, "".join(e.text for e in events if isinstance(e, ArgumentsPiece) and e.index == call.index))
        for call in events
        if isinstance(call, CallStart)
    ]
    assert (*texts, calls) == CASES[answer]


def test_a_long_answer_without_the_mark_is_text_that_streams() -> None:
    reader = AnswerReader(Harmony(), ["f"])
    told = [event for letter in f"{C}final" + " word" * 200 for event in reader.feed(letter)]
    text = "".join(event.text for event in told if isinstance(event, TextPiece))
    assert text.count("word") > 190 and not any(mark in text for mark in (Harmony.mark, *Harmony.other_marks))
