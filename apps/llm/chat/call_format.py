"""How a family of models writes tool calls, as its answers are read and as they are held to it."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping

from apps.llm.chat.reader import END, AnswerReader, Machine


def literal(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text) if text else ""


def mark(text: str, tokens: Mapping[str, int]) -> str:
    """A mark in Lark: one token, where the tokenizer has it as one, else its text."""
    return f"<[{tokens[text]}]>" if text in tokens else literal(text)


class CallFormat(ABC):
    """One way of writing calls: a mark, what follows it, and a call's own text round its arguments."""

    mark = ""
    """What comes before calls, wherever they stand; "": they stand where the answer begins, and nowhere else."""
    other_marks: tuple[str, ...] = ()
    """What else may be one token of the model's."""
    tag = ""
    """Without a mark: what may stand before calls all the same, and then in the middle of an answer too."""
    leads = ""
    """Of calls without a mark: the characters that one may begin with."""
    joint: str | None = None
    """What stands between one mark's calls and the next mark; None: all calls follow one mark."""

    def read(self, reader: AnswerReader, char: str) -> Machine:
        """Text and calls, up to the answer's end."""
        if not self.mark:
            char = yield from reader.attempt("", char, self.read_calls)
        while before := self.mark or self.tag:
            char = yield from reader.text_before(char, before)
            if not reader.at_mark:
                return END
            char = yield from reader.attempt(before, char, self.read_calls)
        return char

    @abstractmethod
    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        """One call or several, up to the first character after them."""

    @abstractmethod
    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        """What stands before and after a call's arguments, which are JSON; in Lark."""

    def calls(self, tokens: Mapping[str, int], one: bool) -> str:
        """What follows a mark, in Lark; `call` is any of the calls."""
        return "call"

    def call_id(self, call_id: str) -> str:
        """A call's id as the chat template takes it."""
        return call_id


def listed(one: bool, opens: str = "[", between: str = ", ", closes: str = "]") -> str:
    """Calls one after another, in Lark."""
    more = "" if one else f"({literal(between)} call)*"
    return f"{literal(opens)} call {more} {literal(closes)}"
