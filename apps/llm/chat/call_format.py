"""Base class of call formats: parses a model family's tool calls and describes them as a grammar."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from apps.llm.chat.reader import END, AnswerReader, Machine
from apps.llm.schemas.written import Schema, schema_text


def literal(text: str) -> str:
    """A text as a Lark literal."""
    return json.dumps(text) if text else ""


def mark(text: str, tokens: Mapping[str, int]) -> str:
    """A mark in Lark: a token if it is a single token, else its text."""
    return f"<[{tokens[text]}]>" if text in tokens else literal(text)


class CallFormat(ABC):
    """A call format: a mark, then calls, each with its own text around its arguments."""

    mark = ""
    """Precedes calls anywhere in an answer; if "", calls are only at the beginning of an answer."""
    other_marks: tuple[str, ...] = ()
    """Other marks that may be a single token."""
    tag = ""
    """In a format without a mark: an optional mark, after which calls may be anywhere in an answer."""
    first_chars = ""
    """In a format without a mark: the characters that a call may begin with."""
    separator: str | None = None
    """Separates one mark's calls from the next mark; None if all calls follow one mark."""
    framed = False
    """Whether all of an answer is within marks, reasoning and text too, so that every answer needs the reader."""
    part_end = ""
    """In a framed format: the mark after each part but the last."""
    result_mark = ""
    """In prompts, the mark before each result, if templates of this format differ in where they look for results."""
    ends: tuple[str, ...] = ()
    """Marks that end an answer, also where the model's config does not name them."""

    def offering(self, schemas: Mapping[str, Schema]) -> "CallFormat":
        """The format for these tools, given by name with the schemas of their arguments."""
        return self

    def read(self, reader: AnswerReader, char: str) -> Machine:
        """Reads text and calls up to the answer's end."""
        if not self.mark:
            char = yield from reader.attempt("", char, self.read_calls)
        while before := self.mark or self.tag:
            char = yield from reader.text_before(char, (before,))
            if not reader.at_mark:
                return END
            char = yield from reader.attempt(before, char, self.read_calls)
        return char

    @abstractmethod
    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        """Reads one or more calls; returns the first character after them."""

    @abstractmethod
    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        """The Lark before and after a call's JSON arguments."""

    def arguments(self, rule: str, schema: Schema) -> list[str]:
        """Rules in Lark for a call's arguments, of which `rule` is for them all: by default, JSON.

        Raises:
            ValueError: the schema cannot be enforced in this format.
        """
        return [f"{rule}: %json {schema_text(schema)}"]

    def calls(self, tokens: Mapping[str, int], one: bool) -> str:
        """The Lark after a mark; `call` is a rule for any call."""
        return "call"

    def between_calls(self, tokens: Mapping[str, int]) -> str:
        """In a framed format, the Lark between two calls; "" if a call ends the answer."""
        return ""

    def frame(self, tokens: Mapping[str, int], text: bool) -> tuple[str, str, str]:
        """In a framed format, the Lark before another part, between `part_end` and the next, and before the answer.

        Args:
            text: whether another part may be text.
        """
        raise NotImplementedError

    # -- what the chat template takes -----------------------------------------------------------------------------

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """A conversation's messages in the form that the chat template accepts."""
        return messages

    def card(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        """A tool's description in the form that the chat template accepts."""
        return tool

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Past calls as the model wrote them, for a chat template that leaves them out; "" if that is not known."""
        return ""

    def template_fields(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The chat template's variables, with values that it knows."""
        return fields


def listed(one: bool, opens: str = "[", between: str = ", ", closes: str = "]") -> str:
    """A list of calls, in Lark."""
    more = "" if one else f"({literal(between)} call)*"
    return f"{literal(opens)} call {more} {literal(closes)}"
