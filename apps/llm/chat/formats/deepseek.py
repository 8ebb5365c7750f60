"""DeepSeek's format: a section of calls. V3.1 writes `f<｜tool▁sep｜>{...}`; V3 and R1 put the JSON in a code block."""

from collections.abc import Mapping

from apps.llm.chat.call_format import CallFormat, literal, mark
from apps.llm.chat.machines.values import blank, closing, exactly, json_value, word
from apps.llm.chat.reader import AnswerReader, Machine, NotACall

OPENS, CLOSES = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```json"
SHARED = "<｜tool▁call"  # how both CALL and CLOSES begin


class DeepSeek(CallFormat):
    """Reads both forms.

    Args:
        fenced: whether the grammar uses the older form, with code blocks.
    """

    mark, other_marks = OPENS, (CLOSES, CALL, SEPARATOR, CALL_END)

    def __init__(self, fenced: bool = False):
        self.fenced = fenced

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        char = yield from exactly(char, CALL)
        while True:
            char = yield from self._call(reader, char)
            char = yield from blank(char)
            if char != "<":
                return char
            char = yield from exactly(char, SHARED)
            if char == "s":
                return (yield from closing(char, CLOSES.removeprefix(SHARED)))
            char = yield from exactly(char, CALL.removeprefix(SHARED))

    def _call(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        name, char = yield from word(char)
        char = yield from exactly(char, SEPARATOR)
        char = yield from blank(char)
        fenced = char != "{"
        if fenced:  # the first word was the call's type
            name, char = yield from word(char)
            char = yield from blank(char)
            char = yield from exactly(char, FENCE)
            char = yield from blank(char)
        if char != "{" or name not in reader.names:
            raise NotACall(char)
        reader.begin(name)
        char = yield from json_value(char, reader.piece)
        if fenced:
            char = yield from closing(char, "```")
        char = yield from closing(char, CALL_END)
        reader.end()
        return char

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        opens, separator, end = (mark(part, tokens) for part in (CALL, SEPARATOR, CALL_END))
        if not self.fenced:
            return f"{opens} {literal(name)} {separator}", end
        block = literal(f"{name}\n{FENCE}\n"), literal("\n```")
        return f"{opens} {literal('function')} {separator} {block[0]}", f"{block[1]} {end}"

    def calls(self, tokens: Mapping[str, int], one: bool) -> str:
        between = literal("\n" if self.fenced else "")
        return f"call {'' if one else f'({between} call)*'} {mark(CLOSES, tokens)}"
