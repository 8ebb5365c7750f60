"""Mistral's format: `[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`, since 2025 `[TOOL_CALLS]f[ARGS]{...}`."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from apps.llm.chat.call_format import CallFormat, listed, literal, mark
from apps.llm.chat.machines.values import blank, call_list, exactly, json_value, word
from apps.llm.chat.reader import AnswerReader, Machine, NotACall

MARK, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
ID_LENGTH = 9


class Mistral(CallFormat):
    """Reads both forms.

    Args:
        named: whether the grammar uses the newer form.
    """

    mark, other_marks = MARK, (ID, ARGS)

    def __init__(self, named: bool = False):
        self.named = named
        self.separator = "" if named else None

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        return (yield from (call_list if char == "[" else self._named)(reader, char))

    def _named(self, reader: AnswerReader, char: str) -> Machine:
        name, char = yield from word(char)
        if name not in reader.names:
            raise NotACall(char)
        char = yield from blank(char)
        if char == "[":
            char = yield
            if char == "C":
                char = yield from exactly(char, ID[1:])
                _, char = yield from word(char)
                char = yield from exactly(char, "[")
            char = yield from exactly(char, ARGS[1:])
            char = yield from blank(char)
        if char != "{":
            raise NotACall(char)
        reader.begin(name)
        char = yield from json_value(char, reader.piece)
        reader.end()
        return char

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        if self.named:
            return f"{literal(name)} {mark(ARGS, tokens)}", ""
        return literal(f'{{"name": "{name}", "arguments": '), literal("}")

    def calls(self, tokens: Mapping[str, int], one: bool) -> str:
        return "call" if self.named else listed(one)

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """With nine-character ids of calls: Mistral's templates refuse any other length."""
        return [_with_ids(message) for message in messages]


def _with_ids(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _call_id(message["tool_call_id"])}
    if "tool_calls" in message:
        return {**message, "tool_calls": [call | {"id": _call_id(call["id"])} for call in message["tool_calls"]]}
    return message


def _call_id(call_id: str) -> str:
    if len(call_id) == ID_LENGTH and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:ID_LENGTH]
