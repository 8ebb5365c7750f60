"""gpt-oss's harmony format: an answer is messages, each with a header that names its channel.

`<|channel|>analysis<|message|>` begins reasoning, `final` the answer, `commentary` text between calls, and
`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>` is a call. The prompt has the first
message's `<|start|>assistant`. Source: the format's description, github.com/openai/harmony/blob/main/docs/format.md.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from apps.llm.chat.call_format import literal, mark
from apps.llm.chat.events import ReasoningPiece, TextPiece
from apps.llm.chat.formats.messages import ASSISTANT, MESSAGE, RECIPIENT, START, TO, MessageFormat
from apps.llm.chat.machines.values import blank, json_value
from apps.llm.chat.reader import END as END_OF_ANSWER
from apps.llm.chat.reader import PARAGRAPH, AnswerReader, Kind, Machine

CHANNEL, CONSTRAIN = "<|channel|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
NAMESPACE = "functions."
CHANNELS = re.compile(r"<\|channel\|>\s*([a-z]+)")
TYPES = re.compile(r"<\|constrain\|>\s*\w*")
ANY_MARK = re.compile(r"<\|[a-z]+\|>")
EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high"}
"""Reasoning efforts that gpt-oss does not know -> the nearest one that it does. It cannot leave reasoning out."""


class Harmony(MessageFormat):
    """Reads recipients before or after the channel.

    Args:
        apart: whether reasoning is told apart from text.
    """

    mark, other_marks = CHANNEL, (START, CONSTRAIN, MESSAGE, END, CALL, RETURN)
    heads = CHANNEL, START, CONSTRAIN, MESSAGE, TO
    begins, finishes = (START, CHANNEL), (END, CALL, RETURN)
    part_end, ends = END, (CALL, RETURN)

    def __init__(self, apart: bool = True):
        self.kinds = {"analysis": ReasoningPiece if apart else TextPiece, "commentary": TextPiece, "final": TextPiece}

    def called(self, reader: AnswerReader, name: str, kind: Kind, char: str) -> Machine:
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

    def parsed(self, header: str) -> tuple[Kind, str, str]:
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
