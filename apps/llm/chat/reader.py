"""Takes an answer apart while it comes: text, reasoning and tool calls.

It is a state machine over characters, written as generators: each is sent the next character, and the line where it
waits is its state. So the events are the same however the text is cut into pieces.

Every generator gets the first character of its part and returns the first one after it; END stands for the answer's
end. What turns out to be no call is text: the characters since the last event are kept until it is clear.
"""

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from apps.llm.chat.events import ArgumentsPiece, CallBegins, CallEnds, ChatEvent, Reasoned, SaidText

if TYPE_CHECKING:
    from apps.llm.chat.call_format import CallFormat

END = ""

Machine = Generator[None, str, str]
"""Is sent characters; returns the first that it has no use for."""


class Unfit(Exception):
    """What was read is no call. `char` is the first character that did not fit."""

    def __init__(self, char: str):
        self.char = char


class Enough(Exception):
    """A second call begins where only one was asked for."""


@dataclass(frozen=True)
class ReasoningMarks:
    """What stands round a model's reasoning, which comes before its answer."""

    opens: str
    closes: str


class AnswerReader:
    """One answer, piece by piece.

    Args:
        calls: how calls are written; None: none are expected.
        names: the tools that were offered; a call to any other is text.
        reasoning: None: the model does not reason, or its reasoning is to stay in the text.
        opened: the prompt has the mark that opens the reasoning already.
        one_call: whatever comes from a second call on is left out.
    """

    def __init__(
        self,
        calls: "CallFormat | None" = None,
        names: Collection[str] = (),
        reasoning: ReasoningMarks | None = None,
        opened: bool = False,
        one_call: bool = False,
    ):
        self.names = frozenset(names)
        self.called = 0  # calls that have begun
        self._calls, self._reasoning, self._opened, self._one_call = calls, reasoning, opened, one_call
        self._events: list[ChatEvent] = []
        self._kind: Callable[..., SaidText | Reasoned | ArgumentsPiece] = SaidText  # of `_run`
        self._run: list[str] = []  # text that is yet to become one event
        self._space = ""  # white space of which it is not yet clear whether text follows it
        self._leading = False  # nothing but white space since reasoning or a call: that is left out
        self._in_call = False
        self._seen: list[str] | None = None  # what may be the beginning of a call
        self._machine = self._answer()
        next(self._machine)

    def feed(self, text: str) -> list[ChatEvent]:
        """The events that these characters bring; neighbours of one kind are one event."""
        for char in text:
            self._send(self._machine, char)
        return self._news()

    def finish(self) -> list[ChatEvent]:
        """The last events; the answer is at its end."""
        self._send(self._machine, END)
        return self._news()

    # -- for the formats ----------------------------------------------------------------------------------------

    def text_before(self, char: str, mark: str, kind: type[SaidText | Reasoned] = SaidText) -> Machine:
        """Shows what comes before the mark; returns the character after it, which `at_mark` tells from a mere end."""
        self.at_mark = False
        while char is not END:
            if char != mark[0]:
                self._show(kind, char)
                char = yield
                continue
            found = 0
            while found < len(mark) and char == mark[found]:
                found += 1
                char = yield
            if found == len(mark):
                self.at_mark = True
                return char
            for held in mark[:found]:
                self._show(kind, held)
        return END

    def attempt(self, mark: str, char: str, machine: Callable[["AnswerReader", str], Machine]) -> Machine:
        """What `machine` reads, or, where it finds it Unfit, the same as text, the mark included."""
        self._seen = [*mark, char]
        try:
            char = yield from machine(self, char)
        except Unfit as unfit:
            char = unfit.char
            if self._in_call:
                self.end()
            else:
                for held in "".join(self._seen).removesuffix(char):
                    self._show(SaidText, held)
        self._seen = None
        return char

    def begin(self, name: str) -> None:
        """A call begins; from here on nothing is taken back."""
        if self._one_call and self.called:
            raise Enough
        self._close_run()
        self._space, self._leading, self._in_call = "", True, True
        self._events.append(CallBegins(self.called, name))
        self.called += 1

    def piece(self, text: str) -> None:
        """A piece of the call's arguments."""
        self._say(ArgumentsPiece, text)

    def end(self) -> None:
        """The end of the call."""
        self._close_run()
        self._in_call = False
        self._events.append(CallEnds(self.called - 1))
        if self._seen is not None:
            del self._seen[:-1]  # the last one is yet to be looked at

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
        said = self._said(chars[0])
        next(said)
        for char in chars[1:]:
            self._send(said, char)
        while True:
            said.send((yield))

    def _reason(self, char: str, marks: ReasoningMarks) -> Generator[None, str, tuple[str, str]]:
        """Reasoning, if the answer begins with it; if not, what was read until that was clear."""
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
        self._leading = True
        char = yield from self.text_before(char, marks.closes, Reasoned)
        self._space, self._leading = "", True
        return "", char

    def _said(self, char: str) -> Machine:
        """Text and calls; waits for ever after the answer's end."""
        try:
            if self._calls is not None:
                char = yield from self._calls.read(self, char)
            while char is not END:
                self._show(SaidText, char)
                char = yield
        except Enough:
            self._seen, self._space, char = None, "", "more"
            while char is not END:
                char = yield
        if self._space:
            self._say(SaidText, self._space)
        while True:
            yield

    def _show(self, kind: type[SaidText | Reasoned], char: str) -> None:
        """Text, but for white space at a border to something else."""
        if not char.isspace():
            self._say(kind, self._space + char)
            self._space, self._leading = "", False
        elif not self._leading:
            self._space += char

    def _say(self, kind: type[SaidText | Reasoned | ArgumentsPiece], text: str) -> None:
        if kind is not self._kind:
            self._close_run()
            self._kind = kind
        self._run.append(text)

    def _close_run(self) -> None:
        if self._run:
            text = "".join(self._run)
            self._events.append(
                ArgumentsPiece(self.called - 1, text) if self._kind is ArgumentsPiece else self._kind(text)
            )
            self._run = []

    def _news(self) -> list[ChatEvent]:
        self._close_run()
        events, self._events = self._events, []
        return events
