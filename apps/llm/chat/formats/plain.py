"""Plain JSON, for templates that describe it in prose: the answer is `{"name": "f", "arguments": {...}}`, or a list."""

from collections.abc import Mapping

from apps.llm.chat.call_format import CallFormat, listed, literal
from apps.llm.chat.reader import AnswerReader, Machine
from apps.llm.chat.values import blank, call_list, call_object


class Plain(CallFormat):
    first_chars = "{["

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        return (yield from (call_list if char == "[" else call_object)(reader, char, arguments_needed=True))

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        return literal(f'{{"name": "{name}", "arguments": '), literal("}")

    def calls(self, tokens: Mapping[str, int], one: bool) -> str:
        return "call" if one else f"call | {listed(one)}"
