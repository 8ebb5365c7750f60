"""The connections to the hosts of one DP rank: the same messages to all of them, in the same order."""

import contextlib
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from apps.llm.engine.execute.readout import SCORE_ROWS
from apps.llm.engine.executor_protocol import Tokens
from apps.llm.engine.hosts.wire import Connection, MessageKind

log = logging.getLogger("podslice")


class SliceFailed(RuntimeError):
    """A host of the slice has died, hangs or failed; the others cannot continue without it."""


class RankWorkers:
    """The hosts of one DP rank: sends all of them the same messages and reads from any of them.

    Only `fail` is thread-safe. Every method raises SliceFailed as soon as any host has failed, and from then on.

    Args:
        connections: one to each host.
        ranks: the hosts' ranks, in the same order; tokens come from the first.
        step_deadline_s: a step that takes longer fails; loading and compiling have no deadline.
        on_close: called once, when the connections are closed.
    """

    def __init__(
        self,
        connections: list[Connection],
        ranks: Iterable[int],
        step_deadline_s: float,
        on_close: Callable[[], None] = lambda: None,
    ):
        self.compiles_after_ready = 0
        self.failure: str | None = None
        self._connections, self._deadline_s, self._on_close = connections, step_deadline_s, on_close
        self._names = [f"host {rank}" for rank in ranks]
        self._reports: list[deque[int]] = [deque() for _ in connections]  # DONE, by host
        self._tokens: deque[Tokens] = deque()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        for i, connection in enumerate(connections):
            self._selector.register(connection.socket, selectors.EVENT_READ, i)
        self._alarm, self._rung = socket.socketpair()  # wakes a thread that waits in the selector
        self._selector.register(self._rung, selectors.EVENT_READ, None)

    def tell(self, data: bytes) -> None:
        """Send the same message to every host."""
        if self.failure:
            raise SliceFailed(self.failure)
        for name, connection in zip(self._names, self._connections):
            try:
                connection.send(data)
            except OSError as error:
                raise self._failed(f"{name} cannot be reached any more ({_reason(error)})") from error

    def reports(self) -> list[int]:
        """Wait for one DONE from each host, and return the numbers they report."""
        while not all(self._reports):
            self._listen(None)
        return [reports.popleft() for reports in self._reports]

    def tokens(self) -> Tokens:
        """Wait for the results of the oldest unread step."""
        deadline = time.monotonic() + self._deadline_s
        while not self._tokens:
            self._listen(deadline)
        return self._tokens.popleft()

    def fail(self, reason: str) -> None:
        """Fail the hosts; a thread that waits for them gets SliceFailed at once. Thread-safe."""
        self.failure = self.failure or reason
        with contextlib.suppress(OSError):  # closed already
            self._alarm.send(b"!")

    def close(self) -> None:
        """Close the connections, which makes the hosts' processes exit."""
        if self._closed:
            return
        self._closed = True
        self.failure = self.failure or "the slice was given back"
        self._selector.close()
        for end in (*(connection.socket for connection in self._connections), self._alarm, self._rung):
            end.close()
        self._on_close()

    def _listen(self, deadline: float | None) -> None:
        """Wait until a host sends something, then process all messages received."""
        if self.failure:
            raise SliceFailed(self.failure)
        left = None if deadline is None else deadline - time.monotonic()
        ready = self._selector.select(left) if left is None or left > 0 else []
        if not ready:
            raise self._failed(f"a step has not ended after {self._deadline_s:.0f} s")
        troubles = []
        for key, _ in ready:
            if key.data is None:
                raise SliceFailed(self.failure)
            try:
                for kind, numbers, content in self._connections[key.data].receive():
                    if kind is MessageKind.TOKENS:
                        self.compiles_after_ready = numbers[0]
                        self._tokens.append(_tokens(numbers[1:], content))
                    elif kind is MessageKind.DONE:
                        self._reports[key.data].append(numbers[0])
                    elif kind is MessageKind.FAILED:
                        troubles.append(f"{self._names[key.data]} failed: {content.decode()}")
            except OSError as error:
                # Reported first: other hosts' failures are mostly a consequence of this one's death.
                troubles.insert(0, f"{self._names[key.data]} has died ({_reason(error)})")
        if troubles:
            raise self._failed(troubles[0])

    def _failed(self, reason: str) -> SliceFailed:
        self.failure = self.failure or reason
        log.error("the slice failed: %s", self.failure)
        return SliceFailed(self.failure)


def _tokens(numbers: tuple[int, ...], content: bytes) -> Tokens:
    """Unpack a TOKENS message: the samples, and the scores and pooled vectors if there are any."""
    rows, columns, scored, width = numbers
    parts = np.split(np.frombuffer(content, np.int32), np.cumsum([rows * columns, scored]))
    samples, scores, pooled = (
        parts[0].reshape(rows, columns),
        parts[1].reshape(SCORE_ROWS, -1),
        parts[2].view(np.float32),
    )
    return Tokens.unpack(samples, scores if scored else None, pooled.reshape(rows, width) if width else None)


def _reason(error: OSError) -> str:
    return str(error) or type(error).__name__
