"""gpt-oss's harmony format: an answer is messages, each with a header that names its channel.

`<|channel|>analysis<|message|>` begins reasoning, `final` the answer, `commentary` text between calls, and
`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>` is a call. The prompt has the first
message's `<|start|>assistant`. Source: the format's description, github.com/openai/harmony/blob/main/docs/format.md.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from apps.llm.chat.call_format import CallFormat, literal, mark
from apps.llm.chat.events import ReasoningPiece, TextPiece
from apps.llm.chat.reader import PARAGRAPH, AnswerReader, Machine, NotACall
from apps.llm.chat.values import blank, exactly, json_value, word

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ASSISTANT, TO, NAMESPACE = "assistant", "to=", "functions."
EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high"}
"""Reasoning efforts that gpt-oss does not know -> the nearest one that it does. It cannot leave reasoning out."""


class Harmony(CallFormat):
    """Reads recipients before or after the channel, and any number of messages.

    Args:
        apart: whether reasoning is told apart from text.
    """

    mark, other_marks = CHANNEL, (START, CONSTRAIN, MESSAGE, END, CALL, RETURN)
    part_end, ends = END, (CALL, RETURN)
    framed = True

    def __init__(self, apart: bool = True):
        self.kinds = {"analysis": ReasoningPiece if apart else TextPiece, "commentary": TextPiece, "final": TextPiece}

    def read(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from reader.attempt("", char, self.read_calls)
        while True:
            char = yield from reader.text_before(char, (START, END, CALL, RETURN))
            if not reader.at_mark:
                return char
            reader.part(TextPiece)
            if reader.at_mark == START:
                char = yield from reader.attempt(START, char, self._next)

    def _next(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from exactly(char, ASSISTANT)
        return (yield from self.read_calls(reader, char))

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        """A message after its role: up to its text, or to the end of its arguments."""
        char = yield from blank(char)
        name, char = yield from self._recipient(char)
        char = yield from exactly(char, CHANNEL)
        channel, char = yield from word(char)
        char = yield from blank(char)
        if not name:
            name, char = yield from self._recipient(char)
        if char == "<":
            char = yield from exactly(char, "<|")
            if char == "c":
                char = yield from exactly(char, CONSTRAIN.removeprefix("<|"))
                _, char = yield from word(char)
                char = yield from blank(char)
                char = yield from exactly(char, "<|")
            char = yield from exactly(char, MESSAGE.removeprefix("<|"))
        else:  # the type alone, as chat templates write it
            _, char = yield from word(char)
            char = yield from exactly(char, MESSAGE)
        if not name:
            if channel not in self.kinds:
                raise NotACall(char)
            reader.part(self.kinds[channel])
            return char
        char = yield from blank(char)
        if name not in reader.names or char != "{":
            raise NotACall(char)
        reader.begin(name)
        char = yield from json_value(char, reader.piece)
        reader.end()
        return char

    def _recipient(self, char: str) -> Generator[None, str, tuple[str, str]]:
        """The tool that a message is to, "" if it is to nobody: (its name, the character after it)."""
        name = ""
        if char == TO[0]:
            char = yield from exactly(char, TO)
            name, char = yield from word(char)
            char = yield from blank(char)
        return name.removeprefix(NAMESPACE), char

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        channel, constrain, message = (mark(part, tokens) for part in (CHANNEL, CONSTRAIN, MESSAGE))
        return f"{channel} {literal(f'commentary {TO}{NAMESPACE}{name} ')} {constrain} {literal('json')} {message}", ""

    def frame(self, tokens: Mapping[str, int], text: bool) -> tuple[str, str, str]:
        start, channel, message = (mark(part, tokens) for part in (START, CHANNEL, MESSAGE))
        other = f"({literal('analysis')} | {literal('commentary')})" if text else literal("analysis")
        return (
            f"{channel} {other} {message}",
            f"{start} {literal(ASSISTANT)}",
            f"{channel} {literal('final')} {message}",
        )

    # -- what the chat template takes -----------------------------------------------------------------------------

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Messages with one call each, as the model writes them, and reasoning where the template looks for it."""
        taken: list[Mapping[str, Any]] = []
        for message in messages:
            if message["role"] == "tool":
                called = (call["id"] for one in reversed(taken) for call in one.get("tool_calls", [{"id": None}]))
                taken.insert(len(taken) - list(called).index(message["tool_call_id"]), message)
                continue
            thinking, calls = message.get("reasoning_content", ""), message.get("tool_calls", ())
            for call in calls:  # the template refuses text beside both reasoning and a call
                thinking = PARAGRAPH.join(part for part in (thinking, message["content"]) if part)
                taken.append({**message, "content": "", "thinking": thinking, "tool_calls": [call]})
                message, thinking = {**message, "content": ""}, ""
            if not calls:
                taken.append({**message, "thinking": thinking} if thinking else message)
        return taken

    def card(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        """With a description, which the template needs."""
        return {**tool, "function": {"description": "", **tool["function"]}}

    def template_fields(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        effort = fields.get("reasoning_effort")
        return {**fields, "reasoning_effort": EFFORTS.get(effort, effort)} if effort else fields
