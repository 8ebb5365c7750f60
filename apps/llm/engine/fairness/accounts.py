"""Whose turn it is: callers share places and the tokens of steps by their weights.

Each caller has an account of the tokens that were computed for it, divided by its weight. Who has had least is next,
which is the virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024): a caller
is never behind another by more than a step or two, however many requests that one sends. One that comes anew begins
level with the one that has had least; time in which it asked for nothing gives it no claim.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from apps.llm.api import Caller


class Ranked(Protocol):
    rank: Any  # among one caller's, lower goes first


S = TypeVar("S", bound=Ranked)


@dataclass(eq=False)
class Account(Generic[S]):
    """One caller's sequences, in the order of their ranks, and what it has had."""

    caller: Caller
    weight: float
    had: float  # tokens computed for it, by weight
    waiting: list[S] = field(default_factory=list)
    running: list[S] = field(default_factory=list)

    @property
    def holds(self) -> float:
        """Places that it holds, by weight."""
        return len(self.running) / self.weight

    def charge(self, tokens: int) -> None:
        self.had += tokens / self.weight

    def may_take_from(self, other: "Account[S]") -> bool:
        """Whether a place may change hands: only to one that then does not hold more than the other does."""
        return (len(self.running) + 1) / self.weight <= (len(other.running) - 1) / other.weight


class Accounts(Generic[S]):
    """The callers that have sequences here.

    Args:
        weights: by the name of a caller; 1 of all others.
    """

    def __init__(self, weights: Mapping[str, float]):
        self._weights = weights
        self._accounts: dict[Caller, Account[S]] = {}

    def of(self, caller: Caller) -> Account[S]:
        """The account that a new sequence belongs to."""
        peers = [account for account in self.of_class(caller.background) if account.waiting or account.running]
        level = min((account.had for account in peers), default=0.0)
        # Without a sequence, who has had more than the others keeps that in mind; who has had less starts anew.
        for known in [account for account in self.of_class(caller.background) if account not in peers]:
            if known.had <= level or not peers:
                del self._accounts[known.caller]
        if caller not in self._accounts:
            self._accounts[caller] = Account(caller, self._weights.get(caller.name, 1.0), level)
        return self._accounts[caller]

    def of_class(self, background: bool) -> list[Account[S]]:
        """The background's, or all others."""
        return [account for account in self._accounts.values() if account.caller.background is background]

    @property
    def waiting(self) -> Iterator[S]:
        return (seq for account in self._accounts.values() for seq in account.waiting)


def put(seqs: list[S], seq: S) -> None:
    """Into its place among others of its caller."""
    insort(seqs, seq, key=lambda each: each.rank)


def next_of(accounts: Iterable[Account[S]]) -> Account[S] | None:
    """Whose turn it is: who has had least, and of equals who holds least."""
    return min(accounts, key=lambda account: (account.had, account.holds), default=None)
