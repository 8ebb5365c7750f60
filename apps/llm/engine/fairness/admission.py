"""Who may ask for more: the limits of each caller, and its share of the queue. Counts what callers have and had."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from apps.llm.api import Caller, CallerStats, LimitReached, QueueFull
from ray_configs.applications.callers import CallerConfig

MINUTE_S = 60.0
RETRY_S = 1.0
"""Until somebody has ended, for all that is known."""
UNLIMITED = CallerConfig()


class Tokens:
    """What is left of a limit of tokens a minute. It fills steadily, and may be overdrawn: an answer's length is known
    only when it ends."""

    def __init__(self, per_minute: int, now: float):
        self._per_minute, self._left, self._then = per_minute, float(per_minute), now

    def left(self, now: float) -> float:
        gained = (now - self._then) * self._per_minute / MINUTE_S
        self._left, self._then = min(self._left + gained, self._per_minute), now
        return self._left

    def full(self, now: float) -> bool:
        return self.left(now) >= self._per_minute

    def take(self, count: int) -> None:
        self._left -= count

    def wait_s(self, now: float) -> float:
        """Seconds until there is a token left."""
        return max(0.0, (1 - self.left(now)) * MINUTE_S / self._per_minute)


@dataclass(eq=False)
class Member:
    """One caller, while it has requests or is short of tokens."""

    admission: "Admission"
    caller: Caller
    config: CallerConfig
    totals: CallerStats  # of its name
    tokens: Tokens | None
    requests: int = 0  # open
    waiting: int = 0  # sequences

    def enters(self) -> None:
        """One of its sequences waits no longer."""
        with self.admission.lock:
            self.waiting -= 1
            self.totals.waiting -= 1

    def uses(self, tokens: int) -> None:
        """So many more were generated for it."""
        with self.admission.lock:
            self.count(tokens)

    def ends(self) -> None:
        """One of its requests has ended."""
        with self.admission.lock:
            self.requests -= 1
            self.totals.requests -= 1

    def count(self, tokens: int) -> None:
        self.totals.tokens += tokens
        if self.tokens is not None:
            self.tokens.take(tokens)

    def idle(self, now: float) -> bool:
        """Whether there is nothing to remember of it."""
        return not self.requests and (self.tokens is None or self.tokens.full(now))


class Admission:
    """Lets requests in or refuses them. Safe from any thread.

    Args:
        callers: by name; others have weight 1 and no limits.
        max_waiting: sequences that may wait in all.
    """

    def __init__(self, callers: Mapping[str, CallerConfig], max_waiting: int, clock: Callable[[], float] | None = None):
        self._configs, self._max_waiting, self._clock = callers, max_waiting, clock or time.monotonic
        self.lock = threading.Lock()
        self._members: dict[Caller, Member] = {}
        self._totals: dict[str, CallerStats] = {}

    def admit(self, caller: Caller, sequences: int, prompt_tokens: int) -> Member:
        """Count a request as open, its sequences as waiting and its prompt's tokens as used.

        Raises:
            LimitReached: the caller has what it may have. The background has no limits.
            QueueFull: too many sequences wait; of several callers, who has less than its share is let in nevertheless.
        """
        now = self._clock()
        with self.lock:
            member = self._member(caller, now)
            try:
                if not caller.background:
                    self._check_limits(member, now)
                self._check_queue(member, sequences)
            except QueueFull:
                member.totals.refused += 1
                raise
            member.requests += 1
            member.waiting += sequences
            member.totals.requests += 1
            member.totals.waiting += sequences
            member.count(prompt_tokens)
        return member

    def stats(self) -> dict[str, CallerStats]:
        """By name, those that were seen since the start."""
        with self.lock:
            return {name: CallerStats(**vars(totals)) for name, totals in self._totals.items()}

    def _member(self, caller: Caller, now: float) -> Member:
        if caller not in self._members:
            for idle in [each for each in self._members.values() if each.idle(now)]:
                del self._members[idle.caller]  # addresses come and go
            config = self._configs.get(caller.name, UNLIMITED)
            limit = None if caller.background else config.tokens_per_minute
            tokens = Tokens(limit, now) if limit else None
            totals = self._totals.setdefault(caller.name, CallerStats())
            self._members[caller] = Member(self, caller, config, totals, tokens)
        return self._members[caller]

    def _check_limits(self, member: Member, now: float) -> None:
        name, config = member.caller.name, member.config
        if config.max_requests is not None and member.requests >= config.max_requests:
            raise LimitReached(
                "max_requests",
                f"{name} has {member.requests} requests open, which is its limit (max_requests {config.max_requests}): "
                "try again when one of them has ended",
                RETRY_S,
            )
        if member.tokens is not None and (wait_s := member.tokens.wait_s(now)) > 0:
            raise LimitReached(
                "tokens_per_minute",
                f"{name} has used up its limit of tokens (tokens_per_minute {config.tokens_per_minute}): "
                f"try again in {wait_s:.0f} s",
                wait_s,
            )

    def _check_queue(self, member: Member, sequences: int) -> None:
        background = member.caller.background
        queue = [each for each in self._members.values() if each.waiting and (background or not each.caller.background)]
        waiting, most = sum(each.waiting for each in queue), self._max_waiting
        if not waiting or waiting + sequences <= most:
            return
        others = [each for each in queue if each is not member]
        share = most * member.config.weight / sum(each.config.weight for each in (*others, member))
        if background or not others or member.waiting + sequences > share:
            whose = f", {member.waiting} of them {member.caller.name}'s, whose share is {share:.0f}" if others else ""
            raise QueueFull(f"{waiting} requests wait already (max_waiting {most}){whose}", RETRY_S)
