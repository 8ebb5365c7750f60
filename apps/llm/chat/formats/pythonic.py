"""Python calls, the second format of Llama 3.2 and 4: the answer is `[f(city="Paris", days=3), g()]`."""

from collections.abc import Mapping

from apps.llm.chat.call_format import CallFormat, listed, literal
from apps.llm.chat.machines.literals import members
from apps.llm.chat.machines.values import blank, exactly, word
from apps.llm.chat.reader import AnswerReader, Machine, NotACall

TAG = "<|python_start|>"


class Pythonic(CallFormat):
    tag, first_chars = TAG, "["

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        char = yield from exactly(char, "[")
        while True:
            char = yield from blank(char)
            if char == "]" and reader.called:
                return (yield)
            char = yield from self._call(reader, char)
            char = yield from blank(char)
            if char == ",":
                char = yield
            elif char != "]":
                raise NotACall(char)

    def _call(self, reader: AnswerReader, char: str) -> Machine:
        name, char = yield from word(char)
        char = yield from exactly(char, "(")
        if name not in reader.names:
            raise NotACall(char)
        reader.begin(name)
        char = yield from blank(char)
        if char == "*":  # f(**{"city": "Paris"})
            char = yield from exactly(char, "**{")
            char = yield from members(char, reader.piece, "}")
            char = yield from blank(char)
            char = yield from exactly(char, ")")
        else:
            char = yield from members(char, reader.piece, ")", "=")
        reader.end()
        return char

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        return literal(f"{name}(**"), literal(")")

    def calls(self, tokens: Mapping[str, int], one: bool) -> str:
        return listed(one)
