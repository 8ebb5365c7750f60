"""Drafts a sequence's next tokens from its own text: what followed an earlier occurrence of its last tokens.

Known as prompt lookup or n-gram speculation (Saxena 2023). It pays where an answer repeats its prompt or itself: edits
of a document, code, JSON, quotations. Plain Python; a token costs a lookup or two, however long the sequence is.
"""

from collections.abc import Mapping, Sequence

GRAM = 3
"""Length of an n-gram: the last tokens must match this many earlier ones to draft what followed those."""
NEARBY = 48
"""Tokens after a wrong guess that are searched first for where the sequence goes on: usually one value was edited."""
AT_FIRST = 0.4  # low enough that one or two guesses must be right before any is used
WEIGHT = 0.15
"""Weight of the newest guess in `Drafter.acceptance`."""

Grams = Mapping[tuple[int, ...], int]
"""Maps each run of GRAM tokens to the position after its last occurrence."""


def grams(tokens: Sequence[int]) -> Grams:
    """Index the n-grams of all tokens but the last, which nothing follows yet. Takes about 0.1 us a token."""
    runs = zip(*(tokens[i:-1] for i in range(GRAM)))
    return dict(zip(runs, range(GRAM, len(tokens))))


class Drafter:
    """Guesses each next token of one sequence and tracks how often it is right, whether or not the guess is used.

    Args:
        prompt: the prompt's tokens.
        known: the prompt's `grams`, shared by all answers to it.
    """

    def __init__(self, prompt: Sequence[int], known: Grams):
        self.acceptance = AT_FIRST
        """Acceptance rate of recent guesses: an exponential moving average."""
        self._tokens, self._prompt = list(prompt), known
        self._answer: dict[tuple[int, ...], int] = {}
        self._lost = 0  # position where the last guess was wrong
        self._place = self._find()  # position of the token that is guessed to come next

    @property
    def guesses(self) -> bool:
        return self._place is not None

    def follow(self, tokens: Sequence[int], known: int) -> None:
        """Take those of the sequence's first `known` tokens that are new."""
        for token in tokens[len(self._tokens) : known]:
            self.take(token)

    def take(self, token: int) -> None:
        """Append the sequence's next token, and score the guess of it."""
        tokens, place = self._tokens, self._place
        if place is not None:
            right = tokens[place] == token
            self.acceptance += WEIGHT * (right - self.acceptance)
            self._lost, self._place = place, place + 1 if right else None
        self._answer[tuple(tokens[-GRAM:])] = len(tokens)
        tokens.append(token)
        if self._place is None:
            self._place = self._find()

    def draft(self, most: int) -> list[int]:
        """`most` guessed next tokens, or none. Past the sequence's end, its last period repeats."""
        if self._place is None:
            return []
        draft = self._tokens[self._place : self._place + most]
        period = len(self._tokens) - self._place
        while len(draft) < most:
            draft.append(draft[-period])
        return draft

    def _find(self) -> int | None:
        """The position after an earlier occurrence of the last tokens, preferably soon after the last wrong guess."""
        if len(self._tokens) <= GRAM:
            return None
        last = tuple(self._tokens[-GRAM:])
        place = self._answer.get(last, self._prompt.get(last))
        if place is None:
            return None
        # A wrong guess is usually a changed value with the same text after it; other matches may lie elsewhere.
        nearby = self._tokens[self._lost : min(self._lost + NEARBY, len(self._tokens) - 1)]
        for i in range(len(nearby) - GRAM + 1):
            if nearby[i] == last[0] and tuple(nearby[i : i + GRAM]) == last:
                return self._lost + i + GRAM
        return place
