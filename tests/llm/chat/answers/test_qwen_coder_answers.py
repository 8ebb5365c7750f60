"""Answers of Qwen3-Coder and Qwen3.5, well formed and not.

The oracle is vLLM's qwen3_coder parser, read and its rules written anew: schemas tell texts from numbers, one line
break on each side of a value is none of it, and values end where their tags do. It differs where a parameter is not in
the schema (a text there), a tool is unknown (a call there), and an answer is cut short (closed there, as if whole).
"""

from typing import Any

import pytest

from apps.llm.chat.formats.qwen_coder import QwenCoder
from apps.llm.chat.reader import AnswerReader
from tests.llm.chat.written import THINK, pieces_of, understood

SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "wet": {"type": "boolean"},
            "place": {"type": "object"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
    "g": {"type": "object", "properties": {}},
}


def call(name: str = "f", **parameters: str) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


LYON = ("", "", [("f", '{"city": "Lyon"}')])
CODE = 'def f():\n    return "</a>"\n'
CASES = {
    # answer: (reasoning, text, calls)
    "Hi.": ("", "Hi.", []),
    "<think>\nHm.\n</think>\n\nHi.": ("Hm.", "Hi.", []),
    call(city="Lyon"): LYON,
    f"I look.\n\n{call(city='Lyon')}": ("", "I look.", LYON[2]),
    f"<think>\nHm.\n</think>\n\n{call(city='Lyon')}\n{call('g')}": ("Hm.", "", [*LYON[2], ("g", "{}")]),
    "<tool_call><function=f><parameter=city>Lyon</parameter></function></tool_call>": LYON,
    call(city="5", days="5", wet="true"): ("", "", [("f", '{"city": "5", "days": 5, "wet": true}')]),
    call(place='{"a": [1, "b"]}'): ("", "", [("f", '{"place": {"a": [1, "b"]}}')]),
    call(note="null"): ("", "", [("f", '{"note": null}')]),
    call(note="no"): ("", "", [("f", '{"note": "no"}')]),
    call(days="soon"): ("", "", [("f", '{"days": "soon"}')]),
    call(city=CODE): ("", "", [("f", '{"city": "def f():\\n    return \\"</a>\\"\\n"}')]),
    call(city="\n\n  two lines  "): ("", "", [("f", '{"city": "\\n\\n  two lines  "}')]),
    call(city=""): ("", "", [("f", '{"city": ""}')]),
    call(other='["a"]'): ("", "", [("f", '{"other": ["a"]}')]),
    # no calls
    "<tool_call>\n<function=h>\n</function>\n</tool_call>": (
        "",
        "<tool_call>\n<function=h>\n</function>\n</tool_call>",
        [],
    ),
    "Write <tool_call> there.": ("", "Write <tool_call> there.", []),
    # damaged or cut short: what is told stays true
    "<tool_call>\n<function=f>\n<parameter=city>\nLyon\n</tool_call> Hi.": ("", "Hi.", [("f", '{"city": "Lyon\\n"}')]),
    "<tool_call>\n<function=f>\n<parameter=city>\nLy": ("", "", [("f", '{"city": "Ly')]),
    "<tool_call>\n<function=f>\n<parameter=days>\n1": ("", "", [("f", '{"days": ')]),
    "<tool_call>\n<function=f>\n<parameter=city>\nLyon\n</parameter>\n": ("", "", [("f", '{"city": "Lyon"')]),
    "<tool_call>\n<function=g>\n</function>": ("", "", [("g", "{}")]),
}


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("answer", CASES)
def test_what_a_client_sees(answer: str, size: int) -> None:
    reader = AnswerReader(QwenCoder().offering(SCHEMAS), SCHEMAS, THINK)
    found = understood(pieces_of(reader, [answer[at : at + size] for at in range(0, len(answer), size)]))
    assert (found.reasoning, found.text, found.calls) == CASES[answer]
