"""What an answer is made of, in the order in which it comes. Each dialect writes these as its own JSON."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SaidText:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoned:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A call to a tool that was offered. Its arguments follow, then its end; no other call begins before that."""

    index: int  # which call of the answer, from 0
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """A piece of the arguments of the call that has begun. All of them joined are a JSON object.

    They are not if the answer was cut short or, with arguments that nothing enforces, if the model wrote no JSON.
    """

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnds:
    """The end of the call that has begun: of its arguments, or of an answer that stops in the middle of them."""

    index: int


ChatEvent = SaidText | Reasoned | CallBegins | ArgumentsPiece | CallEnds
