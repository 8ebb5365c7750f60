"""Llama 3's JSON: the answer is `{"name": "f", "parameters": {...}}`, or has it after `<|python_tag|>`.

More calls follow after a semicolon or on separate lines.
"""

from collections.abc import Mapping

from apps.llm.chat.call_format import CallFormat, listed, literal
from apps.llm.chat.machines.values import blank, call_object
from apps.llm.chat.reader import AnswerReader, Machine

TAG = "<|python_tag|>"


class Llama(CallFormat):
    tag, first_chars = TAG, "{"

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        while True:
            char = yield from call_object(reader, char, arguments_needed=True)
            char = yield from blank(char)
            if char == ";":
                char = yield
                char = yield from blank(char)
            if char != "{":
                return char

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        return literal(f'{{"name": "{name}", "parameters": '), literal("}")

    def calls(self, tokens: Mapping[str, int], one: bool) -> str:
        return listed(one, "", "; ", "")
