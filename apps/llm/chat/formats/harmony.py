"""gpt-oss's harmony format: an answer is messages, each with a header that names its channel.

`<|channel|>analysis<|message|>` begins reasoning, `final` the answer, `commentary` text between calls, and
`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>` is a call. The prompt has the first
message's `<|start|>assistant`. Source: the format's description, github.com/openai/harmony/blob/main/docs/format.md.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from apps.llm.chat.call_format import CallFormat, literal, mark
from apps.llm.chat.events import ReasoningPiece, TextPiece
from apps.llm.chat.reader import END as END_OF_ANSWER
from apps.llm.chat.reader import PARAGRAPH, AnswerReader, Kind, Machine, NotACall
from apps.llm.chat.values import blank, json_value

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN
ASSISTANT, TO, NAMESPACE = "assistant", "to=", "functions."
HEADS = CHANNEL, START, CONSTRAIN, MESSAGE, TO
"""What a header may begin with."""
LONGEST_HEADER = 300
"""Characters; what goes on longer without `<|message|>` is text."""
CHANNELS = re.compile(r"<\|channel\|>\s*([a-z]+)")
TYPES = re.compile(r"<\|constrain\|>\s*\w*")
RECIPIENT = re.compile(r"to=\s*([^\s<]+)")
ANY_MARK = re.compile(r"<\|[a-z]+\|>")
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
        marks = [START, END, CALL, RETURN]  # between messages; the others once there has been one
        char = yield from reader.attempt("", char, partial(self._first, marks))
        while True:
            char = yield from reader.text_before(char, tuple(marks))
            if not reader.at_mark:
                return char
            if reader.at_mark in (END, CALL, RETURN):
                reader.part(TextPiece)
            elif reader.at_mark in (START, CHANNEL):
                marks[:] = MARKS
                char = yield from reader.attempt(reader.at_mark, char, partial(self._message, reader.at_mark))

    def _first(self, marks: list[str], reader: AnswerReader, char: str) -> Machine:
        """The first message, after which there are all `marks`. An answer that does not begin like a header is text."""
        held = ""
        while held not in HEADS:
            if char is END_OF_ANSWER or not any(head.startswith(held + char) for head in HEADS):
                if held or not char.isspace():
                    raise NotACall(char)
            else:
                held += char
            char = yield
        marks[:] = MARKS
        return (yield from self._message(held, reader, char))

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        return (yield from self._message("", reader, char))

    def _message(self, begun: str, reader: AnswerReader, char: str) -> Machine:
        """A message after the beginning of its header: up to its text, or to the end of its arguments.

        Models write headers that the format does not know. No part of a header is shown, whatever it is like.
        """
        at = START
        while at == START:
            header, at, char = yield from self._header(begun, char)
            kind, name, rest = self._parsed(header)
            if at != MESSAGE:
                reader.part(kind)
                reader.text(rest)
                begun = START
        if at != MESSAGE:
            if at:
                reader.part(TextPiece)
            return char
        if name in reader.names:
            char = yield from blank(char)
            if char == "{":
                reader.begin(name)
                char = yield from json_value(char, reader.piece)
                reader.end()
                return char
            if char in (END_OF_ANSWER, "<"):  # a call without arguments
                reader.begin(name)
                reader.piece("{}")
                reader.end()
                return char
        reader.part(kind)
        return char

    def _header(self, begun: str, char: str) -> Generator[None, str, tuple[str, str, str]]:
        """A header, the mark after it ("" if there is none), and the next character."""
        seen = begun
        while char is not END_OF_ANSWER and len(seen) < LONGEST_HEADER:
            seen += char
            char = yield
            if mark := next((mark for mark in (MESSAGE, START, END, CALL, RETURN) if seen.endswith(mark)), ""):
                return seen.removesuffix(mark), mark, char
        return seen, "", char

    def _parsed(self, header: str) -> tuple[Kind, str, str]:
        """The kind of a message, the tool that it is to ("" if it is to none), and what else its header has."""
        channels = CHANNELS.findall(header)
        kind = next((kind for name, kind in self.kinds.items() if any(c.startswith(name) for c in channels)), TextPiece)
        recipient = RECIPIENT.search(header)
        rest = header
        for known in (CHANNELS, TYPES, RECIPIENT, ANY_MARK):
            rest = known.sub(" ", rest)
        rest = rest.strip().removeprefix(ASSISTANT).strip()
        rest = "" if ASSISTANT.startswith(rest) else rest  # cut short
        return kind, recipient[1].removeprefix(NAMESPACE) if recipient else "", rest

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
        taken: list[list[Mapping[str, Any]]] = []  # each message, with the results of its call
        called: dict[str, list[Mapping[str, Any]]] = {}
        for message in messages:
            if message["role"] == "tool":
                called[message["tool_call_id"]].insert(1, message)
                continue
            thinking, calls = message.get("reasoning_content", ""), message.get("tool_calls", ())
            for call in calls:  # the template refuses text beside both reasoning and a call
                thinking = PARAGRAPH.join(part for part in (thinking, message["content"]) if part)
                taken.append([{**message, "content": "", "thinking": thinking, "tool_calls": [call]}])
                called[call["id"]] = taken[-1]
                message, thinking = {**message, "content": ""}, ""
            if not calls:
                taken.append([{**message, "thinking": thinking} if thinking else message])
        return [message for one in taken for message in one]

    def card(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        """With a description, which the template needs."""
        return {**tool, "function": {"description": "", **tool["function"]}}

    def template_fields(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        effort = fields.get("reasoning_effort")
        return {**fields, "reasoning_effort": EFFORTS.get(effort, effort)} if effort else fields
