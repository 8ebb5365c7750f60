"""Plain JSON, for templates that describe it in prose: the answer is `{"name": "f", "arguments": {...}}`, or a list.

Phi-4-mini writes `<|tool_call|>[...]<|/tool_call|>`, or, as its template has it, `functools[...]`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from apps.llm.chat.call_format import CallFormat, listed, literal, mark
from apps.llm.chat.machines.values import blank, call_list, call_object, closing
from apps.llm.chat.reader import AnswerReader, Machine

PHI_TOOL, PHI_CALL, PHI_END = "<|tool|>", "<|tool_call|>", "<|/tool_call|>"
FUNCTOOLS = "functools"


class Plain(CallFormat):
    """Reads calls with or without the tag.

    Args:
        tag: may precede the calls.
        closes: may follow them.
    """

    first_chars = "{["

    def __init__(self, tag: str = "", closes: str = ""):
        self.tag, self.closes = tag, closes
        self.other_marks = (closes,) if closes else ()

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        char = yield from (call_list if char == "[" else call_object)(reader, char, arguments_needed=True)
        return (yield from closing(char, self.closes)) if self.closes else char

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        return literal(f'{{"name": "{name}", "arguments": '), literal("}")

    def calls(self, tokens: Mapping[str, int], one: bool) -> str:
        forms = "call" if one else f"call | {listed(one)}"
        return f"({forms}) ({mark(self.closes, tokens)})?" if self.closes else forms

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        functions = [{name: call["function"][name] for name in ("name", "arguments")} for call in calls]
        return self.tag + json.dumps(functions, ensure_ascii=False) + self.closes
