"""Plain JSON, for templates that ask for it in words: the answer is `{"name": "f", "arguments": {...}}`, or a list."""

from collections.abc import Mapping

from apps.llm.chat.call_format import CallFormat, listed, literal
from apps.llm.chat.reader import AnswerReader, Machine
from apps.llm.chat.values import blank, call_object, exactly


class Plain(CallFormat):
    leads = "{["

    def read(self, reader: AnswerReader, char: str) -> Machine:
        return (yield from reader.attempt("", char, self._calls))

    def _calls(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        if char != "[":
            return (yield from call_object(reader, char, arguments_needed=True))
        char = yield
        while True:
            char = yield from blank(char)
            char = yield from call_object(reader, char, arguments_needed=True)
            char = yield from blank(char)
            if char == "]":
                return (yield)
            char = yield from exactly(char, ",")

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        return literal(f'{{"name": "{name}", "arguments": '), literal("}")

    def calls(self, tokens: Mapping[str, int], one: bool) -> str:
        return "call" if one else f"call | {listed(one)}"
