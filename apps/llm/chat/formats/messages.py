"""Formats in which an answer is messages, each with a header before `<|message|>`: gpt-oss's and Muse Glimmer's.

The prompt has the first message's `<|start|>assistant`.
"""

import re
from abc import abstractmethod
from collections.abc import Generator
from functools import partial

from apps.llm.chat.call_format import CallFormat
from apps.llm.chat.events import TextPiece
from apps.llm.chat.reader import END as END_OF_ANSWER
from apps.llm.chat.reader import AnswerReader, Kind, Machine, NotACall

START, MESSAGE = "<|start|>", "<|message|>"
ASSISTANT, TO = "assistant", "to="
RECIPIENT = re.compile(r"to=\s*([^\s<]+)")
LONGEST_HEADER = 300
"""Characters; what goes on longer without `<|message|>` is text."""


class MessageFormat(CallFormat):
    """Reads any number of messages. Models write headers that the format does not know: no part of one is shown."""

    framed = True
    heads: tuple[str, ...] = (START, MESSAGE, TO)
    """What a header may begin with."""
    begins: tuple[str, ...] = (START,)
    """Marks that begin a header."""
    finishes: tuple[str, ...] = ()
    """Marks that end a message."""

    @abstractmethod
    def parsed(self, header: str) -> tuple[Kind, str, str]:
        """The kind of a message, the tool that it is to ("" if it is to none), and what else its header has."""

    @abstractmethod
    def called(self, reader: AnswerReader, name: str, kind: Kind, char: str) -> Machine:
        """Reads the body of a message to a tool. What is no call is text of that kind."""

    def read(self, reader: AnswerReader, char: str) -> Machine:
        every = self.mark, *self.other_marks
        marks = [START, *self.finishes]  # between messages; the others once there has been one
        char = yield from reader.attempt("", char, partial(self._first, marks, every))
        while True:
            char = yield from reader.text_before(char, tuple(marks))
            if not reader.at_mark:
                return char
            if reader.at_mark in self.finishes:
                reader.part(TextPiece)
            elif reader.at_mark in self.begins:
                marks[:] = every
                char = yield from reader.attempt(reader.at_mark, char, partial(self._message, reader.at_mark))

    def _first(self, marks: list[str], every: tuple[str, ...], reader: AnswerReader, char: str) -> Machine:
        """The first message, after which there are all `marks`. An answer that does not begin like a header is text."""
        held = ""
        while held not in self.heads:
            if char is END_OF_ANSWER or not any(head.startswith(held + char) for head in self.heads):
                if held or not char.isspace():
                    raise NotACall(char)
            else:
                held += char
            char = yield
        marks[:] = every
        return (yield from self._message(held, reader, char))

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        return (yield from self._message("", reader, char))

    def _message(self, begun: str, reader: AnswerReader, char: str) -> Machine:
        """A message after the beginning of its header: up to its text, or to the end of its call."""
        at = START
        while at == START:
            header, at, char = yield from self._header(begun, char)
            kind, name, rest = self.parsed(header)
            if at != MESSAGE:
                reader.part(kind)
                reader.text(rest)
                begun = START
        if at != MESSAGE:
            if at:
                reader.part(TextPiece)
            return char
        if name:
            return (yield from self.called(reader, name, kind, char))
        reader.part(kind)
        return char

    def _header(self, begun: str, char: str) -> Generator[None, str, tuple[str, str, str]]:
        """A header, the mark after it ("" if there is none), and the next character."""
        seen = begun
        if begun == MESSAGE:
            return "", MESSAGE, char
        while char is not END_OF_ANSWER and len(seen) < LONGEST_HEADER:
            seen += char
            char = yield
            if mark := next((mark for mark in (MESSAGE, START, *self.finishes) if seen.endswith(mark)), ""):
                return seen.removesuffix(mark), mark, char
        return seen, "", char
