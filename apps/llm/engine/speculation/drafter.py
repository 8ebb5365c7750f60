"""Drafts of a sequence's next tokens, out of its own: what followed when its last tokens occurred before.

Known as prompt lookup or n-gram speculation (Saxena 2023). It pays where an answer repeats its prompt or itself: edits
of a document, code, JSON, quotations. Plain Python; a token costs a lookup or two, however long the sequence is.
"""

from collections.abc import Mapping, Sequence

GRAM = 3
"""Tokens that must have occurred before, in this order, for what followed them to be a draft."""
NEARBY = 48
"""Tokens after the place where a draft went wrong in which the sequence may find its place again: an edited value."""
AT_FIRST = 0.4  # so low that one or two guesses must have been right before any is used
WEIGHT = 0.15
"""Of the newest guess in `Drafter.rate`."""

Grams = Mapping[tuple[int, ...], int]
"""Of each run of GRAM tokens: the place after it, of its last occurrence."""


def grams(tokens: Sequence[int]) -> Grams:
    """Of all tokens but the last: nothing follows that one yet. Takes about 0.1 us a token."""
    runs = zip(*(tokens[i:-1] for i in range(GRAM)))
    return dict(zip(runs, range(GRAM, len(tokens))))


class Drafter:
    """Guesses each next token of one sequence, and keeps count of how often it is right: also when nobody uses it.

    Args:
        prompt: its tokens.
        known: the prompt's grams, which answers to the same prompt share.
    """

    def __init__(self, prompt: Sequence[int], known: Grams):
        self.rate = AT_FIRST
        """How many of the last guesses were right: a moving average of ones and zeros."""
        self._tokens, self._prompt, self._answer = list(prompt), known, {}
        self._lost = 0  # the place where the last guess was wrong
        self._place = self._find()  # of the token that is guessed to come next

    @property
    def guesses(self) -> bool:
        return self._place is not None

    def take(self, token: int) -> None:
        """The sequence's next token, as it came."""
        tokens, place = self._tokens, self._place
        if place is not None:
            right = tokens[place] == token
            self.rate += WEIGHT * (right - self.rate)
            self._lost, self._place = place, place + 1 if right else None
        self._answer[tuple(tokens[-GRAM:])] = len(tokens)
        tokens.append(token)
        if self._place is None:
            self._place = self._find()

    def draft(self, most: int) -> list[int]:
        """Up to `most` tokens that may come next. What repeats itself is taken to go on so."""
        if self._place is None:
            return []
        draft = self._tokens[self._place : self._place + most]
        period = len(self._tokens) - self._place
        while len(draft) < most:
            draft.append(draft[-period])
        return draft

    def _find(self) -> int | None:
        """The place after an earlier occurrence of the last tokens; soon after the lost place, if there is one."""
        if len(self._tokens) <= GRAM:
            return None
        last = tuple(self._tokens[-GRAM:])
        place = self._answer.get(last, self._prompt.get(last))
        if place is None:
            return None
        # A wrong guess is mostly a changed value, after which the text goes on; elsewhere there may be more like it.
        nearby = self._tokens[self._lost : min(self._lost + NEARBY, len(self._tokens) - 1)]
        for i in range(len(nearby) - GRAM + 1):
            if nearby[i] == last[0] and tuple(nearby[i : i + GRAM]) == last:
                return self._lost + i + GRAM
        return place
