"""Answers of Muse Glimmer, well formed and not: what is to itself is reasoning, to the user text, to a tool a call.

The oracle is vLLM's muse_glimmer tool parser, read and its rules written anew: recipients decide, no mark is shown,
an invocation outside of a message to a tool is no call. Where they differ it is said: schemas tell texts from numbers.
"""

from typing import Any

import pytest

from apps.llm.chat.events import ArgumentsPiece, CallEnd, CallStart, ReasoningPiece, TextPiece
from apps.llm.chat.formats.atem import Atem
from apps.llm.chat.reader import AnswerReader

M, EOM, EOT, S = "<|message|>", "<|eom|>", "<|eot|>", "<|start|>assistant"
OPENS, CLOSES = "<atem:function_calls>", "</atem:function_calls>"
SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "place": {"$ref": "#/$defs/place"},
            "any": {},
        },
        "$defs": {"place": {"type": "object"}},
    },
    "get_weather": {"type": "object"},
}


def invoke(name: str, **parameters: str) -> str:
    inside = "".join(f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in parameters.items())
    return f'<atem:invoke name="{name}">\n{inside}</atem:invoke>\n'


def call(name: str = "f", to: str | None = None, **parameters: str) -> str:
    return f" to={to or name}{M}{OPENS}\n{invoke(name, **parameters)}{CLOSES}"


LYON = call(city="Lyon")
CALLED = ("", "", [("f", '{"city": "Lyon"}')])
WHOLE = f" to=self{M}Hm.{EOM}{S} to=user{M}I look.{EOM}{S}{LYON}{EOM}{S}{call(days='3')}{EOT}"
CASES = {
    # answer: (reasoning, text, calls)
    f" to=user{M}Hi.{EOT}": ("", "Hi.", []),
    f" to=self{M}Hm.{EOM}{S} to=user{M}Hi.{EOT}": ("Hm.", "Hi.", []),
    f"to=self{M}Hm.{EOM}{S} to=user{M}Hi.": ("Hm.", "Hi.", []),
    f"{M}Hi.{EOT}": ("", "Hi.", []),
    f" to=self{M}Hm.{EOM}{S}{M}Hi.{EOT}": ("Hm.", "Hi.", []),
    f" to=self{M}A.{EOM}{S} to=self{M}B.{EOM}{S} to=user{M}Hi.": ("A.\n\nB.", "Hi.", []),
    f" to=self{M}Hm.{S} to=user{M}Hi.": ("Hm.", "Hi.", []),
    f" to=self{M}Hm.{EOM}<|start|>": ("Hm.", "", []),
    f" to=self{M}Hm.{EOM}{S} to=us": ("Hm.", "", []),
    f" to=self{M}Hm": ("Hm", "", []),
    " to=se": ("", "", []),
    "Hi.": ("", "Hi.", []),
    "to be": ("", "to be", []),
    "": ("", "", []),
    LYON + EOT: CALLED,
    LYON + EOM: CALLED,
    LYON: CALLED,
    f" to=self{M}Hm.{EOM}{S}{LYON}{EOT}": ("Hm.", "", CALLED[2]),
    WHOLE: ("Hm.", "I look.", [("f", '{"city": "Lyon"}'), ("f", '{"days": 3}')]),
    f" to=f{M}\n{OPENS}{invoke('f')}{invoke('f', days='1')}{CLOSES}{EOT}": (
        "",
        "",
        [("f", "{}"), ("f", '{"days": 1}')],
    ),
    # the names that the prompt offers are f.*
    call("f.f", city="Lyon"): CALLED,
    call("f", to="f.f", city="Lyon"): CALLED,
    call("get_weather.get_weather", days="3"): ("", "", [("get_weather", '{"days": 3}')]),
    # values
    call(city="5"): ("", "", [("f", '{"city": "5"}')]),  # vLLM: the number
    call(city=' a "b" \\n\n<c> '): ("", "", [("f", '{"city": " a \\"b\\" \\\\n\\n<c> "}')]),
    call(city="a</atem:p</b>"): ("", "", [("f", '{"city": "a</atem:p</b>"}')]),
    call(days="3"): ("", "", [("f", '{"days": 3}')]),
    call(days="three"): ("", "", [("f", '{"days": "three"}')]),
    call(note="null"): ("", "", [("f", '{"note": null}')]),
    call(note="7"): ("", "", [("f", '{"note": "7"}')]),
    call(place='{"a": [1, "<"]}'): ("", "", [("f", '{"place": {"a": [1, "<"]}}')]),
    call(any="true", other="NaN"): ("", "", [("f", '{"any": true, "other": "NaN"}')]),
    call(any='["a", 1]', other='"x"'): ("", "", [("f", '{"any": ["a", 1], "other": "x"}')]),
    # no calls: to nobody who takes one, or to an unknown tool
    f" to=user{M}Write {invoke('f')}.{EOT}": ("", f"Write {invoke('f')}.", []),
    f" to=self{M}{OPENS}{invoke('f')}{CLOSES}{EOM}{S} to=user{M}Hi.": (f"{OPENS}{invoke('f')}{CLOSES}", "Hi.", []),
    f" to=g{M}{OPENS}{invoke('g')}{CLOSES}{EOT}": ("", f"{OPENS}{invoke('g')}{CLOSES}", []),
    f" to=f{M}Hello?{EOT}": ("", "Hello?", []),
    # damaged: what closes a value is missing, or the call is cut short
    f" to=f{M}{OPENS}{invoke('f', city='Lyon').split('tem:parameter>')[0]}{EOM}{S} to=user{M}Hi.": (
        "",
        "Hi.",
        [("f", '{"city": "Lyon</a"}')],
    ),
    f"{LYON[:-50]}": ("", "", [("f", '{"city": "Lyon')]),
    f" to=f{M}{OPENS}{invoke('f', days='12')[:-35]}": ("", "", [("f", '{"days": ')]),
    f" to=f{M}{OPENS}{invoke('f')}": ("", "", [("f", "{}")]),
}


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("answer", CASES)
def test_what_a_client_sees(answer: str, size: int) -> None:
    reader = AnswerReader(Atem().offering(SCHEMAS), SCHEMAS)
    events = [event for at in range(0, len(answer), size) for event in reader.feed(answer[at : at + size])]
    events += reader.finish()
    reasoning, text, calls = "", "", []
    for event in events:
        match event:
            case ReasoningPiece():
                reasoning += event.text
            case TextPiece():
                text += event.text
            case CallStart():
                calls.append((event.name, ""))
            case ArgumentsPiece():
                calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
            case CallEnd():
                pass
    wanted_reasoning, wanted_text, wanted_calls = CASES[answer]
    assert (reasoning, text, calls) == (wanted_reasoning, wanted_text.strip(), wanted_calls)
