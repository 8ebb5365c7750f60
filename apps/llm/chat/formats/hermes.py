"""The format of Hermes and Qwen: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>` for each call."""

from collections.abc import Mapping

from apps.llm.chat.call_format import CallFormat, literal, mark
from apps.llm.chat.machines.values import blank, call_object, closing
from apps.llm.chat.reader import AnswerReader, Machine

OPENS, CLOSES = "<tool_call>", "</tool_call>"


class Hermes(CallFormat):
    mark, other_marks, separator = OPENS, (CLOSES,), "\n"

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        char = yield from call_object(reader, char)
        return (yield from closing(char, CLOSES))

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        return literal(f'\n{{"name": "{name}", "arguments": '), literal("}\n") + " " + mark(CLOSES, tokens)
