"""Gemma's format: `<start_function_call>call:f{city:<escape>Paris<escape>}<end_function_call>`; Gemma 4 uses others."""

from collections.abc import Mapping
from typing import NamedTuple

from apps.llm.chat.call_format import CallFormat, literal, mark
from apps.llm.chat.machines.literals import members
from apps.llm.chat.machines.values import blank, closing, exactly, word
from apps.llm.chat.reader import AnswerReader, Machine, NotACall


class GemmaMarks(NamedTuple):
    opens: str
    closes: str
    quote: str  # around strings
    result: str  # before a result, in prompts


FUNCTION_GEMMA = GemmaMarks(
    "<start_function_call>", "<end_function_call>", "<escape>", "<start_function_response>response:"
)
GEMMA4 = GemmaMarks("<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>response:")


class Gemma(CallFormat):
    separator = ""

    def __init__(self, marks: GemmaMarks = FUNCTION_GEMMA):
        self.marks, self.mark, self.other_marks = marks, marks.opens, (marks.closes, marks.quote)
        self.result_mark = marks.result

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        char = yield from exactly(char, "call:")
        char = yield from blank(char)
        name, char = yield from word(char)
        char = yield from exactly(char, "{")
        if name not in reader.names:
            raise NotACall(char)
        reader.begin(name)
        char = yield from members(char, reader.piece, "}", quote=self.marks.quote)
        reader.end()
        return (yield from closing(char, self.marks.closes))

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        return literal(f"call:{name}"), mark(self.marks.closes, tokens)
