"""Weighted fair queueing: callers share batch slots and the tokens of steps by their weights.

Each caller's account counts the tokens computed for it, divided by its weight. The caller with the lowest count goes
next. This is the virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024): no
caller falls behind another by more than a step or two, however many requests the other sends. A new caller starts at
the lowest count among the active ones; idle time earns no credit.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from apps.llm.api import Caller


class Ranked(Protocol):
    rank: Any  # order among one caller's sequences, lowest first


S = TypeVar("S", bound=Ranked)


@dataclass(eq=False)
class Account(Generic[S]):
    """One caller's sequences, ordered by rank, and the tokens it was served."""

    caller: Caller
    weight: float
    served: float  # tokens computed for it, divided by its weight
    waiting: list[S] = field(default_factory=list)
    running: list[S] = field(default_factory=list)

    @property
    def held(self) -> float:
        """Slots it holds, divided by its weight."""
        return len(self.running) / self.weight

    def charge(self, tokens: int) -> None:
        self.served += tokens / self.weight

    def may_take_from(self, other: "Account[S]") -> bool:
        """Whether a slot may move here from `other`: only if this caller then holds no more, by weight."""
        return (len(self.running) + 1) / self.weight <= (len(other.running) - 1) / other.weight


class Accounts(Generic[S]):
    """The accounts of all callers with sequences in the scheduler.

    Args:
        weights: by caller name; 1 for callers not listed.
    """

    def __init__(self, weights: Mapping[str, float]):
        self._weights = weights
        self._accounts: dict[Caller, Account[S]] = {}

    def of(self, caller: Caller) -> Account[S]:
        """The account for a new sequence of this caller, created if needed."""
        peers = [account for account in self.of_class(caller.background) if account.waiting or account.running]
        level = min((account.served for account in peers), default=0.0)
        # An idle caller that was served more than the active ones keeps its count; any other idle account is dropped.
        for known in [account for account in self.of_class(caller.background) if account not in peers]:
            if known.served <= level or not peers:
                del self._accounts[known.caller]
        if caller not in self._accounts:
            self._accounts[caller] = Account(caller, self._weights.get(caller.name, 1.0), level)
        return self._accounts[caller]

    def of_class(self, background: bool) -> list[Account[S]]:
        """Accounts of background callers, or of all others."""
        return [account for account in self._accounts.values() if account.caller.background is background]

    @property
    def waiting(self) -> Iterator[S]:
        return (seq for account in self._accounts.values() for seq in account.waiting)


def insert(seqs: list[S], seq: S) -> None:
    """Insert a sequence into its caller's list, by rank."""
    insort(seqs, seq, key=lambda each: each.rank)


def least_served(accounts: Iterable[Account[S]]) -> Account[S] | None:
    """The account that goes next: the least served, and among equals the one that holds the fewest slots by weight."""
    return min(accounts, key=lambda account: (account.served, account.held), default=None)
