"""The events of an answer, in order. Each dialect writes them as its own JSON."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call to an offered tool. Its arguments and end follow before the next call begins."""

    index: int  # of the call in the answer, from 0
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """A piece of the open call's arguments. Joined, the pieces are a JSON object.

    Exceptions: the answer was cut short, or the arguments are not enforced and the model wrote invalid JSON.
    """

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of the open call: its arguments are complete, or the answer was cut short in them."""

    index: int


ChatEvent = TextPiece | ReasoningPiece | CallStart | ArgumentsPiece | CallEnd
