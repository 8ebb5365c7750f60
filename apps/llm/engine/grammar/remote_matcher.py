"""The matchers of a grammar that is followed in another process. The engine's thread uses them, and never waits."""

import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from apps.llm.engine.grammar import child

MASK_S = 5.0
"""A process may owe a mask for this long."""
LONGEST_PROBLEM = 500


class RemoteMatcher:
    """Follows one answer through a grammar, as `matchers.Matcher` does.

    A mask comes some time after the token before it: while it is `pending`, its answer takes no part in steps.
    """

    def __init__(self, grammar: "RemoteGrammar", number: int):
        self._grammar, self._number, self._mask = grammar, number, grammar.first_mask
        self.pending = False  # whether the mask after the last token is still to come
        self.complete = False
        self.failure = grammar.failure
        self.told: Callable[[], None] = lambda: None  # is called, in another thread, when `pending` ends
        weakref.finalize(self, grammar.drop, number)

    @property
    def ended(self) -> bool:
        """Whether the answer is complete, or cannot go on."""
        return self.complete or bool(self.failure)

    def answered(self) -> bool:
        """Whether the mask after the last token is there."""
        return not self.pending

    def copy(self) -> "RemoteMatcher":
        """One at the beginning of an answer."""
        return self._grammar.matcher()

    def follows(self, tokens: Sequence[int]) -> int:
        """None of a draft's tokens: what is allowed next comes from the other process."""
        return 0

    def allowed_along(self, draft: Sequence[int]) -> list[np.ndarray | None]:
        """The mask of the tokens that may come next, `[ceil(vocab / 32)]` uint32. There are no drafts."""
        return [self._mask]

    def replay(self, tokens: Sequence[int]) -> None:
        """Advance by an answer's tokens so far; as `consume`."""
        if not self.failure:
            self.pending = True
            self._grammar.take(self, self._number, tokens)

    def consume(self, token: int) -> bool:
        """Advance by a token. Whether that completes the answer is known when `pending` ends."""
        self.replay((token,))
        return True

    def heard(self, state: int, payload: bytes) -> None:
        """What the process says of the last token."""
        if state == child.GOES_ON:
            self._mask = np.frombuffer(payload, np.uint32)
        elif state == child.COMPLETE:
            self.complete = True
        else:
            self.failure = one_line(payload.decode(errors="replace"))
        self.pending = False
        self.told()


class RemoteGrammar:
    """A compiled grammar.

    Args:
        sender: a descriptor of the socket to its process. Owned by this object.
        first_mask: of every answer.
        end: ends the process.
    """

    def __init__(self, sender: int, first_mask: np.ndarray, end: Callable[[], None]):
        self.first_mask, self.end = first_mask, end
        self.failure = ""
        self.places = 1  # of the pool's
        self.idle_since: float | None = time.monotonic()  # None while there are matchers
        self._sender = sender
        self._lock = threading.RLock()  # a matcher may be collected anywhere
        self._open: weakref.WeakValueDictionary[int, RemoteMatcher] = weakref.WeakValueDictionary()
        self._numbers = 0
        self._due: dict[int, float] = {}  # when the matchers that wait for a mask have waited too long

    def matcher(self) -> RemoteMatcher:
        with self._lock:
            self._numbers += 1
            self.idle_since = None
            matcher = self._open[self._numbers] = RemoteMatcher(self, self._numbers)
        return matcher

    def take(self, matcher: RemoteMatcher, number: int, tokens: Sequence[int]) -> None:
        with self._lock:
            self._due[number] = time.monotonic() + MASK_S
            self._send(number, len(tokens), *tokens)
            failure = self.failure
        if failure:
            matcher.heard(child.FAILED, failure.encode())

    def drop(self, number: int) -> None:
        """Forget a matcher that is gone."""
        with self._lock:
            self._due.pop(number, None)
            self._send(number, child.DROP)
            if not self._open:
                self.idle_since = time.monotonic()

    def heard(self, number: int, state: int, payload: bytes) -> None:
        """What the process says of a matcher."""
        with self._lock:
            matcher = self._open.get(number) if self._due.pop(number, None) else None
        if matcher is not None:
            matcher.heard(state, payload)

    @property
    def late(self) -> bool:
        """Whether the process owes a mask for too long."""
        with self._lock:
            return any(due < time.monotonic() for due in self._due.values())

    def fail(self, reason: str) -> None:
        """Tell all matchers that the process has ended."""
        with self._lock:
            self.failure, self._due = reason, {}
            os.close(self._sender)
            self._sender = -1
            open_ = list(self._open.values())
        for matcher in open_:
            matcher.heard(child.FAILED, reason.encode())

    def _send(self, number: int, count: int, *tokens: int) -> None:
        with suppress(OSError):  # it has ended, as the reader of its answers finds; or it reads nothing, and is late
            message = memoryview(child.TAKE.pack(number, count) + struct.pack(f"<{len(tokens)}i", *tokens))
            while message:
                message = message[os.write(self._sender, message) :]


def one_line(problem: str) -> str:
    """A library's error as one short line of printable characters, for answers and logs: it may repeat a schema."""
    line = " ".join(problem.split())[:LONGEST_PROBLEM]
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
