"""Which of several cells on one state may change it.

The holder says so every few seconds in `lease.json`. Another cell that finds it takes its place only after it saw the
same words for LEASE_S, by its own clock: no two machines' clocks need agree. A lease lost unnoticed (a process that
stood still for a minute) does no harm either: the store refuses the second writer of a version.
"""

import time
from dataclasses import dataclass
from typing import Any

from apps.cell.store import Store

FILE = "lease.json"
LEASE_S = 20.0
RENEW_S = 5.0


@dataclass(frozen=True)
class Holder:
    """A cell as others are told of it."""

    owner: str
    """The same for a cell that was started again in the same Ray cluster: it need not wait for itself."""
    where: str
    """For people: host and address."""


class Lease:
    """One cell's view. Call `renew` every RENEW_S; blocking, as the store is."""

    def __init__(self, store: Store, me: Holder):
        self._store, self._me = store, me
        self._count = 0
        self._seen: tuple[Any, float] | None = None
        self.held = False
        self.other: Holder | None = None
        """Who holds it, when it is not this cell."""
        self.undecided = False
        """Whether that one has not been seen to live: it may have been killed, and its words be left over."""

    def renew(self) -> bool:
        """Takes, keeps or looks at the lease; returns whether this cell holds it. Raises what the store raises."""
        found = self._store.read_small(FILE)
        now = time.monotonic()
        if found is not None and found.get("owner") != self._me.owner:
            if self._seen is None or self._seen[0] != found:
                self.undecided = self._seen is None
                self._seen = (found, now)
            if now - self._seen[1] < LEASE_S:
                self.held, self.other = False, Holder(str(found.get("owner")), str(found.get("where")))
                return False
        self._count += 1
        self._store.write_small(FILE, {"owner": self._me.owner, "where": self._me.where, "count": self._count})
        self._seen, self.other, self.held, self.undecided = None, None, True, False
        return True

    def release(self) -> None:
        """Lets another cell begin at once."""
        if self.held:
            self.held = False
            self._store.remove_small(FILE)
