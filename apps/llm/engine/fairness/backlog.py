"""Caps the prefill of callers that have a backlog, so that steps stay short for callers that have none.

A first token takes three steps: when the prompt arrives, one step is running and the next one is already launched; the
third computes the prompt. So while callers without a backlog have been active recently, the backlogged callers share a
fraction of each step for prefill, and get none in a step that brings a caller without a backlog its first token.
"""

from collections.abc import Iterable
from typing import Any

from apps.llm.api import Caller
from apps.llm.engine.fairness.accounts import Account

PREFILL_DIVISOR = 4
"""Backlogged callers prefill at most a step's tokens divided by this."""
RECENT_STEPS = 1000
"""About ten seconds."""


class Backlog:
    """Tracks which callers have a backlog (sequences still waiting after a step is planned) and which have none.

    Args:
        step_tokens: budget of a step.
    """

    def __init__(self, step_tokens: int):
        self._cap = max(1, step_tokens // PREFILL_DIVISOR)
        self._step = 0
        self._first_token_steps: dict[Caller, int] = {}  # callers without a backlog: step of their last first token
        self._callers: frozenset[Caller] = frozenset()

    def __contains__(self, account: Account[Any]) -> bool:
        return account.caller in self._callers

    def prefill_budget(self, left: int) -> int:
        """Tokens that backlogged callers may prefill in a step that has `left` tokens left."""
        recent = self._step - RECENT_STEPS
        others = any(step > recent and each not in self._callers for each, step in self._first_token_steps.items())
        return min(left, self._cap) if others else left

    def first_token(self, account: Account[Any]) -> None:
        """Note that the step brings a caller without a backlog a first token."""
        self._first_token_steps[account.caller] = self._step

    def next_step(self, accounts: Iterable[Account[Any]], steps: int = 1) -> None:
        """Note that a step is planned, or several alike: callers with sequences still waiting are backlogged in the
        next one."""
        self._step += steps
        self._callers = frozenset(account.caller for account in accounts if account.waiting)
        if self._step % RECENT_STEPS < steps:
            recent = self._step - RECENT_STEPS
            self._first_token_steps = {each: step for each, step in self._first_token_steps.items() if step > recent}
