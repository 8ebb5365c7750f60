"""What a cell does again and again: it renews its lease and reconciles.

Neither stops the other, and what fails in every round is not in the log for every round.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from apps.cell.desired.store import RENEW_S

log = logging.getLogger("podslice")

VARYING = re.compile(r"[0-9a-fA-F]*[0-9][0-9a-fA-F]*")
"""Numbers, ids and addresses, in which one error differs from the next of its kind."""
FIRST_AGAIN_S, LAST_AGAIN_S = 60.0, 3600.0


class Failures:
    """Logs a failure when it begins and when it ends, and meanwhile after ever longer times.

    Args:
        now: seconds of a monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self.current: dict[str, str] = {}
        """By what fails: the error."""
        self._logged: dict[str, tuple[str, float, float]] = {}
        """By what fails: the kind of error logged last, when it may be logged again, and how long after that."""

    @contextmanager
    def noting(self, what: str, traced: bool = False) -> Iterator[None]:
        """Logs what the block raises, and goes on.

        Args:
            what: what then fails, in words that tell it from all else.
            traced: the first time with a traceback.
        """
        try:
            yield
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            self.current[what] = str(error)
            kind = VARYING.sub("", told)
            before, again_at, after_s = self._logged.get(what, ("", 0.0, FIRST_AGAIN_S))
            if kind == before and self._now() < again_at:
                return
            after_s = min(2 * after_s, LAST_AGAIN_S) if kind == before else FIRST_AGAIN_S
            self._logged[what] = kind, self._now() + after_s, after_s
            trace = error if traced and kind != before else None
            log.error("%s: %s; the cell goes on and tries again", what, told, exc_info=trace)
        else:
            self.current.pop(what, None)
            if self._logged.pop(what, None) is not None:
                log.info("%s: no longer", what)


class Rounds:
    """The rounds of one cell. `once` blocks, and raises nothing.

    Args:
        renew: renews the lease.
        reconcile: compares the desired state with what runs, and asks for the difference.
    """

    def __init__(self, renew: Callable[[], None], reconcile: Callable[[], None], failures: Failures):
        self._renew, self._reconcile, self._failures = renew, reconcile, failures
        self._renewed = time.monotonic()

    def once(self) -> None:
        if time.monotonic() - self._renewed >= RENEW_S:
            self._renewed = time.monotonic()
            with self._failures.noting("the cell's lease cannot be renewed"):
                self._renew()
        with self._failures.noting("a round of reconciling failed", traced=True):
            self._reconcile()
