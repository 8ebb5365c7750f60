"""Keeps steps short for callers that ask for little, while others have requests waiting: the crowd.

A first token comes at the end of the third step: one is running when the prompt comes, one is launched already, the
third has the prompt. So while somebody outside the crowd has been about lately, the crowd has only a part of each step
for its prefill, and none of a step that brings somebody outside it a first token.
"""

from collections.abc import Iterable
from typing import Any

from apps.llm.api import Caller
from apps.llm.engine.fairness.accounts import Account

PART = 4
"""The crowd's prefill has one such part of a step's tokens."""
LATELY = 1000
"""Steps: some ten seconds."""


class Crowd:
    """Who waits for more than it gets, and who was served at once.

    Args:
        step_tokens: budget of a step.
    """

    def __init__(self, step_tokens: int):
        self._part = max(1, step_tokens // PART)
        self._step = 0
        self._served_at_once: dict[Caller, int] = {}  # in which step, last
        self._callers: frozenset[Caller] = frozenset()

    def __contains__(self, account: Account[Any]) -> bool:
        return account.caller in self._callers

    def budget(self, budget: int) -> int:
        """Of so many tokens that are left of a step, those that the crowd may have."""
        lately = self._step - LATELY
        others = any(step > lately and each not in self._callers for each, step in self._served_at_once.items())
        return min(budget, self._part) if others else budget

    def first_token(self, account: Account[Any]) -> None:
        """The step brings one to somebody outside the crowd."""
        self._served_at_once[account.caller] = self._step

    def next_step(self, accounts: Iterable[Account[Any]]) -> None:
        """A step is planned, and who still waits is the crowd in the next one."""
        self._step += 1
        self._callers = frozenset(account.caller for account in accounts if account.waiting)
        if not self._step % LATELY:
            lately = self._step - LATELY
            self._served_at_once = {each: step for each, step in self._served_at_once.items() if step > lately}
