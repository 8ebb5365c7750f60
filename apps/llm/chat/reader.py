"""Parses an answer into text, reasoning and tool calls while it streams.

The parser is a state machine over characters, written as generators: each is sent the next character, and the line
where it waits is its state. So the events do not depend on how the text is split into pieces.

Every generator is given the first character of its part and returns the first one after it; END is the answer's end.
A possible call is buffered until it is certain; if it turns out not to be one, it becomes text.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from apps.llm.chat.events import ArgumentsPiece, CallEnd, CallStart, ChatEvent, ReasoningPiece, TextPiece
from apps.llm.chat.sendable_json import Sendable
from apps.llm.chat.stops import StopStrings

END = ""
PARAGRAPH = "\n\n"
"""Separates texts that a client joins."""

Kind = type[TextPiece | ReasoningPiece]
Machine = Generator[None, str, str]
"""Is sent characters; returns the first one after its part."""


class NotACall(Exception):
    """The text is not a call. `char` is the first character that did not fit."""

    def __init__(self, char: str):
        self.char = char


class ExtraCall(Exception):
    """A second call begins where only one is allowed."""


@dataclass(frozen=True)
class ReasoningMarks:
    """The marks around a model's reasoning, which precedes its answer."""

    opens: str
    closes: str
    label: str = ""
    """A line that may follow the opening mark, and is no part of the reasoning."""


class CallSyntax(Protocol):
    """What a reader needs of a format of calls."""

    def read(self, reader: "AnswerReader", char: str) -> Machine:
        """Reads text and calls up to the answer's end."""


class AnswerReader:
    """Reads one answer, piece by piece.

    Args:
        calls: format of calls; None if none are expected.
        names: the tools offered; a call to any other is text.
        reasoning: marks of the reasoning; None if the model does not reason, or its reasoning stays in the text.
        opened: whether the prompt already has the opening mark of the reasoning.
        one_call: whether everything from the second call on is dropped.
        stop: strings that end the answer where they are in its text: not in reasoning, nor in a call.
        keep_stop: whether the string that ends it is part of its text.
    """

    def __init__(
        self,
        calls: "CallSyntax | None" = None,
        names: Collection[str] = (),
        reasoning: ReasoningMarks | None = None,
        opened: bool = False,
        one_call: bool = False,
        stop: Sequence[str] = (),
        keep_stop: bool = False,
    ):
        self.names = frozenset(names)
        self.called = 0  # number of calls begun
        self._calls, self._reasoning, self._opened, self._one_call = calls, reasoning, opened, one_call
        self._events: list[ChatEvent] = []
        self._part: Kind = TextPiece  # kind of text that is being read
        self._kind: Callable[..., TextPiece | ReasoningPiece | ArgumentsPiece] = TextPiece  # kind of `_run`
        self._emitted: set[Kind] = set()  # kinds of text so far
        self._run: list[str] = []  # text of the next event
        self._space = ""  # white space that is dropped unless text follows
        self._leading = False  # only white space since reasoning or a call; it is dropped
        self._in_call = False
        self._arguments = Sendable()  # of the open call
        self._seen: list[str] | None = None  # a possible call's characters
        self._stops = StopStrings(stop, keep_stop) if stop else None
        self.stopped: str | None = None
        """The stop string that has ended the answer: nothing after it is read."""
        self._machine = self._answer()
        next(self._machine)

    def feed(self, text: str) -> list[ChatEvent]:
        """The events in these characters; consecutive pieces of one kind are one event."""
        if self.stopped is not None:
            return []
        for char in text:
            self._send(self._machine, char)
        return self._news()

    def finish(self) -> list[ChatEvent]:
        """Ends the answer; returns the last events."""
        if self.stopped is not None:
            return []
        self._send(self._machine, END)
        rest = self._news()
        held = self._stops.rest() if self._stops is not None and self.stopped is None else ""
        return [*rest, TextPiece(held)] if held else rest

    # -- for the formats ----------------------------------------------------------------------------------------

    def text_before(self, char: str, marks: tuple[str, ...]) -> Machine:
        """Emits the text before the first of the marks; returns the character after it. `at_mark`: the mark, or ""."""
        self.at_mark = ""
        while char is not END:
            held = ""
            while char is not END and any(mark.startswith(held + char) for mark in marks):
                held += char
                char = yield
                if held in marks:
                    self.at_mark = held
                    return char
            for one in held or char:
                self._emit_text(one)
            if not held:
                char = yield
        return END

    def part(self, kind: Kind) -> None:
        """Begins another part of the answer, a paragraph after others of its kind. White space before it is dropped."""
        self._part, self._leading = kind, True
        self._space = PARAGRAPH if kind in self._emitted else ""

    def text(self, text: str) -> None:
        """Emits text of the part that is being read."""
        for char in text:
            self._emit_text(char)

    def attempt(self, mark: str, char: str, machine: Callable[["AnswerReader", str], Machine]) -> Machine:
        """Runs `machine`; if it raises NotACall, emits what it read, and the mark, as text."""
        self._seen = [*mark, char]
        try:
            char = yield from machine(self, char)
        except NotACall as failed:
            char = failed.char
            if self._in_call:
                self.end()
            else:
                for held in "".join(self._seen).removesuffix(char):
                    self._emit_text(held)
        self._seen = None
        return char

    def begin(self, name: str) -> None:
        """Begins a call; it can no longer become text."""
        if self._one_call and self.called:
            raise ExtraCall
        self._close_run()
        self._space, self._leading, self._in_call = "", True, True
        self._arguments = Sendable()
        self._events.append(CallStart(self.called, name))
        self.called += 1

    def piece(self, text: str) -> None:
        """Emits a piece of the call's arguments."""
        self._emit(ArgumentsPiece, text)

    def end(self) -> None:
        """Ends the call."""
        self._close_run(last=True)
        self._in_call = False
        self._events.append(CallEnd(self.called - 1))
        if self._seen is not None:
            del self._seen[:-1]  # the last character is not part of the call

    # -- inside -------------------------------------------------------------------------------------------------

    def _send(self, machine: Machine, char: str) -> None:
        if self._seen is not None:
            self._seen.append(char)
        machine.send(char)

    def _answer(self) -> Machine:
        char = yield
        held = ""
        if self._reasoning is not None:
            held, char = yield from self._reason(char, self._reasoning)
        chars = [*held, char]
        body = self._body(chars[0])
        next(body)
        for char in chars[1:]:
            self._send(body, char)
        while True:
            body.send((yield))

    def _reason(self, char: str, marks: ReasoningMarks) -> Generator[None, str, tuple[str, str]]:
        """Reads the reasoning, if the answer begins with it; returns (characters read if not, next character)."""
        if not self._opened:
            held = ""
            while char.isspace():
                held += char
                char = yield
            space = len(held)
            while len(held) < space + len(marks.opens) and char == marks.opens[len(held) - space]:
                held += char
                char = yield
            if len(held) < space + len(marks.opens):
                return held, char
        self.part(ReasoningPiece)
        char = yield from self._after_label(char, marks.label)
        char = yield from self.text_before(char, (marks.closes,))
        self.part(TextPiece)
        return "", char

    def _after_label(self, char: str, label: str) -> Machine:
        """Skips a line with the label; emits what only begins like it."""
        held = ""
        while len(held) < len(label) and char == label[len(held)]:
            held += char
            char = yield
        if held != label and (held + "\n" != label or char.isalnum()):
            for one in held:
                self._emit_text(one)
        return char

    def _body(self, char: str) -> Machine:
        """Reads text and calls; waits forever after the answer's end."""
        try:
            if self._calls is not None:
                char = yield from self._calls.read(self, char)
            while char is not END:
                self._emit_text(char)
                char = yield
        except ExtraCall:
            self._seen, self._space, char = None, "", "more"
            while char is not END:
                char = yield
        if self._space and self._part is TextPiece and not self._leading:
            self._emit(TextPiece, self._space)
        while True:
            yield

    def _emit_text(self, char: str) -> None:
        """Emits text, without white space next to reasoning or calls."""
        if not char.isspace():
            self._emit(self._part, self._space + char)
            self._emitted.add(self._part)
            self._space, self._leading = "", False
        elif not self._leading:
            self._space += char

    def _emit(self, kind: type[TextPiece | ReasoningPiece | ArgumentsPiece], text: str) -> None:
        if kind is not self._kind:
            self._close_run()
            self._kind = kind
        self._run.append(text)

    def _close_run(self, last: bool = False) -> None:
        """Makes an event of the text since the one before. `last`: it is the end of a call's arguments."""
        if not self._run and not last:
            return
        text, self._run = "".join(self._run), []
        if self._kind is not ArgumentsPiece:
            self._events += [self._kind(text)] if text else []
            return
        text = self._arguments.feed(text) + (self._arguments.rest() if last else "")
        self._events += [ArgumentsPiece(self.called - 1, text)] if text else []

    def _news(self) -> list[ChatEvent]:
        self._close_run()
        events, self._events = self._events, []
        return events if self._stops is None else self._until_stop(events, self._stops)

    def _until_stop(self, events: list[ChatEvent], stops: StopStrings) -> list[ChatEvent]:
        """The events up to the first stop string, without text that may be the beginning of one."""
        kept: list[ChatEvent] = []
        waiting = self._space if self._part is TextPiece and not self._leading and not self._in_call else ""
        if waiting and stops.ends_with("".join(e.text for e in events if isinstance(e, TextPiece)) + waiting):
            events = [*events, TextPiece(waiting)]
        for i, event in enumerate(events):
            text = stops.feed(event.text) if isinstance(event, TextPiece) else stops.rest()
            if text:
                kept.append(TextPiece(text))
            if not isinstance(event, TextPiece):
                kept.append(event)
            if stops.found is not None:
                self.stopped = stops.found
                self.called -= sum(isinstance(later, CallStart) for later in events[i:])
                break
        return kept
