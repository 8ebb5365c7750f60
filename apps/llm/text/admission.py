"""Admission control: enforces each caller's limits and its share of the queue, and counts what callers use."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from apps.llm.api import Caller, CallerStats, LimitReached, QueueFull, RequestError
from ray_configs.applications.callers import CallerConfig

MINUTE_S = 60.0
RETRY_S = 1.0
"""Retry-After where it is unknown when a request will end."""
UNLIMITED = CallerConfig()


class TokenBucket:
    """A token bucket for a limit of tokens a minute. It refills steadily and may be overdrawn, because an answer's
    length is known only when it ends."""

    def __init__(self, per_minute: int, now: float):
        self._per_minute, self._left, self._then = per_minute, float(per_minute), now

    def left(self, now: float) -> float:
        gained = (now - self._then) * self._per_minute / MINUTE_S
        self._left, self._then = min(self._left + gained, self._per_minute), now
        return self._left

    def full(self, now: float) -> bool:
        return self.left(now) >= self._per_minute

    def take(self, count: float) -> None:
        self._left -= count

    def wait_s(self, now: float) -> float:
        """Seconds until the bucket holds a token."""
        return max(0.0, (1 - self.left(now)) * MINUTE_S / self._per_minute)


@dataclass(frozen=True, slots=True)
class CallerUse:
    """What a caller with limits uses in one process, for the others that enforce the same limits."""

    requests: int  # open
    tokens: int  # in all, since the process began to count
    left: float  # in its token bucket


NOTHING = CallerUse(0, 0, 0.0)


@dataclass(eq=False)
class CallerState:
    """What one caller uses, kept while it has open requests or its token bucket is not full."""

    admission: "Admission"
    caller: Caller
    config: CallerConfig
    totals: CallerStats  # of all callers of its name: tokens and refusals, which outlive them
    bucket: TokenBucket | None
    requests: int = 0  # open
    waiting: int = 0  # sequences
    tokens: int = 0  # counted here, not elsewhere

    def left_queue(self) -> None:
        """Count one sequence fewer in the queue."""
        with self.admission.lock:
            self.waiting -= 1

    def generated(self, tokens: int) -> None:
        """Count tokens generated for the caller."""
        with self.admission.lock:
            self.count(tokens)

    def request_ended(self) -> None:
        """Count one open request fewer."""
        with self.admission.lock:
            self.requests -= 1

    def count(self, tokens: int) -> None:
        self.totals.tokens += tokens
        if self.bucket is not None:
            self.tokens += tokens
            self.bucket.take(tokens)

    def idle(self, now: float) -> bool:
        """Whether its state equals that of a new caller and can be dropped."""
        return not self.requests and (self.bucket is None or self.bucket.full(now))


class Admission:
    """Admits or refuses requests. Thread-safe.

    Args:
        callers: by name; callers not listed have weight 1 and no limits.
        max_waiting: the most sequences that may wait, over all callers.
    """

    def __init__(self, callers: Mapping[str, CallerConfig], max_waiting: int, clock: Callable[[], float] | None = None):
        self._configs, self._max_waiting, self._clock = callers, max_waiting, clock or time.monotonic
        self.lock = threading.Lock()
        self._states: dict[Caller, CallerState] = {}
        self._totals: dict[str, CallerStats] = {}
        self._elsewhere: dict[str, dict[Caller, CallerUse]] = {}  # by the processes that told it

    def admit(self, caller: Caller, sequences: int, prompt_tokens: int) -> CallerState:
        """Admit a request: count it as open, its sequences as waiting and its prompt tokens as used.

        Raises:
            LimitReached: the caller is at one of its limits. Background callers have none.
            QueueFull: the queue is full. If several callers wait, one below its share of the queue is still admitted.
        """
        with self.lock:
            state = self._state(caller, self._clock())
            self._check(state, sequences)
            state.requests += 1
            state.waiting += sequences
            state.count(prompt_tokens)
        return state

    def check_size(self, caller: Caller, prompts: int, answers: int) -> None:
        """Raises RequestError for a request of several prompts, each with so many answers, that can never be admitted:
        to try again later, as `admit` would say, is of no use."""
        most = self._configs.get(caller.name, UNLIMITED).max_requests
        if prompts > 1 and prompts * answers > self._max_waiting:
            said = f"{prompts} prompts with {answers} answers each" if answers > 1 else f"{prompts} prompts"
            raise RequestError("n" if answers > 1 else "prompt", f"{said} are more than may wait ({self._max_waiting})")
        if prompts > 1 and most is not None and prompts > most and not caller.background:
            raise RequestError(
                "prompt", f"{prompts} prompts are more requests than {caller.name} may have open ({most})"
            )

    def check(self, caller: Caller) -> None:
        """Raises what `admit` would for a request of one sequence, before any work is done for it."""
        with self.lock:
            self._check(self._state(caller, self._clock()), 1)

    @contextmanager
    def preparing(self, caller: Caller, tokens: int) -> Iterator[None]:
        """Counts a request as open, and `tokens` as used, while its texts are tokenized in the block.

        `admit` counts the real ones afterwards. What is refused in the block keeps its charge: the work was done.

        Raises:
            LimitReached, QueueFull: as `admit`.
        """
        with self.lock:
            state = self._state(caller, self._clock())
            self._check(state, 1)
            state.requests += 1
            if state.bucket is not None:
                state.bucket.take(tokens)
        try:
            yield
            if state.bucket is not None:
                with self.lock:
                    state.bucket.take(-tokens)
        finally:
            state.request_ended()

    def stats(self) -> dict[str, CallerStats]:
        """Totals by caller name, of all callers seen since the start."""
        with self.lock:
            found = {name: replace(totals) for name, totals in self._totals.items()}
            for state in self._states.values():
                found[state.caller.name].requests += state.requests
                found[state.caller.name].waiting += state.waiting
        return found

    def use(self) -> dict[Caller, CallerUse]:
        """What callers with limits use here, for the `learn` of processes that enforce the same limits."""
        with self.lock:
            now = self._clock()
            return {
                caller: CallerUse(state.requests, state.tokens, state.bucket.left(now) if state.bucket else 0.0)
                for caller, state in self._states.items()
                if state.bucket is not None or state.config.max_requests is not None
            }

    def learn(self, elsewhere: Mapping[str, Mapping[Caller, CallerUse]]) -> None:
        """Count what callers use in other processes against their limits here.

        Args:
            elsewhere: what the `use` of each other process says now, by the process's name. One that is not named any
                more has ended, and its requests with it.
        """
        with self.lock:
            now, before = self._clock(), self._elsewhere
            self._elsewhere = {process: dict(used) for process, used in elsewhere.items()}
            for process, used in self._elsewhere.items():
                for caller, use in used.items():
                    if (bucket := self._state(caller, now).bucket) is None:
                        continue
                    if process in before:
                        known = before[process].get(caller, NOTHING).tokens
                        # Fewer than known: it had forgotten a caller that used nothing, and counts from 0 again.
                        bucket.take(use.tokens - known if use.tokens >= known else use.tokens)
                    else:  # what it has counted so far may be days old
                        bucket.take(max(0.0, bucket.left(now) - use.left))

    def _state(self, caller: Caller, now: float) -> CallerState:
        if caller not in self._states:
            for idle in [each for each in self._states.values() if each.idle(now)]:
                del self._states[idle.caller]  # callers without a key are told apart by address, and addresses churn
            config = self._configs.get(caller.name, UNLIMITED)
            limit = None if caller.background else config.tokens_per_minute
            bucket = TokenBucket(limit, now) if limit else None
            totals = self._totals.setdefault(caller.name, CallerStats())
            self._states[caller] = CallerState(self, caller, config, totals, bucket)
        return self._states[caller]

    def _check(self, state: CallerState, sequences: int) -> None:
        try:
            if not state.caller.background:
                self._check_limits(state, self._clock())
            self._check_queue(state, sequences)
        except QueueFull:
            state.totals.refused += 1
            raise

    def _check_limits(self, state: CallerState, now: float) -> None:
        name, config = state.caller.name, state.config
        elsewhere = sum(used.get(state.caller, NOTHING).requests for used in self._elsewhere.values())
        open_ = state.requests + elsewhere
        if config.max_requests is not None and open_ >= config.max_requests:
            raise LimitReached(
                "max_requests",
                f"{name} has {open_} requests open, which is its limit (max_requests {config.max_requests}): "
                "try again when one of them has finished",
                RETRY_S,
            )
        if state.bucket is not None and (wait_s := state.bucket.wait_s(now)) > 0:
            raise LimitReached(
                "tokens_per_minute",
                f"{name} has used up its token limit (tokens_per_minute {config.tokens_per_minute}): "
                f"try again in {wait_s:.0f} s",
                wait_s,
            )

    def _check_queue(self, state: CallerState, sequences: int) -> None:
        background = state.caller.background
        queue = [each for each in self._states.values() if each.waiting and (background or not each.caller.background)]
        waiting, most = sum(each.waiting for each in queue), self._max_waiting
        if not waiting or waiting + sequences <= most:
            return
        others = [each for each in queue if each is not state]
        share = most * state.config.weight / sum(each.config.weight for each in (*others, state))
        if background or not others or state.waiting + sequences > share:
            whose = f", {state.waiting} of them {state.caller.name}'s, whose share is {share:.0f}" if others else ""
            raise QueueFull(f"{waiting} requests are already waiting (max_waiting {most}){whose}", RETRY_S)
