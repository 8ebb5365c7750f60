"""One engine, several hosts: each call of the executor goes to all of them as one message, and tokens come from one.

    engine -> LockstepExecutor --TCP--> follow(), with a LocalExecutor, on host 0 --tokens--> engine
                               --TCP--> follow(), with a LocalExecutor, on host 1 ...

The hosts hold one JAX program. They run it in step because each gets the same messages in the same order, and says
nothing back but its host 0 the tokens, and any of them its failure.

A plain connection for each host, and not an actor call: see the numbers in `tests/llm/slice/overhead.py`. And the
kernel closes it in the moment in which the process at its other end dies.
"""

import contextlib
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from apps.llm.engine.executor_protocol import Tokens, fitting, step_shapes
from apps.llm.engine.model import Model
from apps.llm.engine.sampling import Extras
from apps.llm.engine.step import HostStep, StepShape
from apps.llm.engine.wire import Connection, Kind, message
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")


class SliceFailed(RuntimeError):
    """A host of the slice has died, hangs or could not do its part; the others cannot go on without it."""


class Hosts:
    """The hosts of a slice as the engine's process holds them: it tells them all the same, and hears any of them.

    All but `fail` is for one thread at a time. Every method raises SliceFailed as soon as any host cannot go on, and
    from then on.

    Args:
        connections: one to each host, in the order of their ranks.
        step_deadline_s: a step that takes longer fails; loading and compiling may take any time.
        on_close: called once, when nothing more can be asked of the hosts.
    """

    def __init__(
        self, connections: list[Connection], step_deadline_s: float, on_close: Callable[[], None] = lambda: None
    ):
        self.compiles_after_ready = 0
        self.failure: str | None = None
        self._connections, self._deadline_s, self._on_close = connections, step_deadline_s, on_close
        self._reports: list[deque[int]] = [deque() for _ in connections]  # DONE, by host
        self._tokens: deque[Tokens] = deque()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        for rank, connection in enumerate(connections):
            self._selector.register(connection.socket, selectors.EVENT_READ, rank)
        self._alarm, self._rung = socket.socketpair()  # wakes whoever sleeps in the selector
        self._selector.register(self._rung, selectors.EVENT_READ, None)

    def tell(self, data: bytes) -> None:
        """The same message to every host."""
        if self.failure:
            raise SliceFailed(self.failure)
        for rank, connection in enumerate(self._connections):
            try:
                connection.send(data)
            except OSError as error:
                raise self._failed(f"host {rank} cannot be reached any more ({_reason(error)})") from error

    def reports(self) -> list[int]:
        """Waits for one DONE from each host; what they report."""
        while not all(self._reports):
            self._listen(None)
        return [reports.popleft() for reports in self._reports]

    def tokens(self) -> Tokens:
        """Waits for the oldest step whose samples were not taken yet."""
        deadline = time.monotonic() + self._deadline_s
        while not self._tokens:
            self._listen(deadline)
        return self._tokens.popleft()

    def fail(self, reason: str) -> None:
        """From any thread: nothing more will come of the hosts. Whoever waits for them gets SliceFailed at once."""
        self.failure = self.failure or reason
        with contextlib.suppress(OSError):  # closed already
            self._alarm.send(b"!")

    def close(self) -> None:
        """Ends the connections, at which the hosts' processes exit."""
        if self._closed:
            return
        self._closed = True
        self.failure = self.failure or "the slice was given back"
        self._selector.close()
        for end in (*(connection.socket for connection in self._connections), self._alarm, self._rung):
            end.close()
        self._on_close()

    def _listen(self, deadline: float | None) -> None:
        """Takes in what the hosts say; sleeps until one of them says something."""
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
                    if kind is Kind.TOKENS:
                        self.compiles_after_ready = numbers[0]
                        samples = np.frombuffer(content, np.int32).reshape(numbers[1], numbers[2])
                        self._tokens.append(Tokens.unpack(samples))
                    elif kind is Kind.DONE:
                        self._reports[key.data].append(numbers[0])
                    elif kind is Kind.FAILED:
                        troubles.append(f"host {key.data} failed: {content.decode()}")
            except OSError as error:
                # First: the others' own failures are mostly that this one is gone.
                troubles.insert(0, f"host {key.data} has died ({_reason(error)})")
        if troubles:
            raise self._failed(troubles[0])

    def _failed(self, reason: str) -> SliceFailed:
        self.failure = self.failure or reason
        log.error("the slice failed: %s", self.failure)
        return SliceFailed(self.failure)


class LockstepExecutor:
    """The executor of an engine whose model lies on the devices of several hosts. See `Executor`."""

    def __init__(self, config: EngineConfig, model: Model, hosts: Hosts):
        self.arch, self.pages, self.hosts = model.arch, 0, hosts
        self.shapes = step_shapes(config, model.max_len(config))
        hosts.reports()  # each has loaded its part of the weights

    def make_cache(self, calibration_ids: list[int]) -> int:
        self.hosts.tell(message(Kind.MAKE_CACHE, (len(calibration_ids),), _bytes(calibration_ids)))
        pages = self.hosts.reports()
        if len(set(pages)) > 1:
            raise SliceFailed(f"the hosts disagree about the number of KV cache pages: {pages}")
        self.pages = pages[0]
        return self.pages

    def warm_up(self) -> None:
        self.hosts.tell(message(Kind.WARM_UP))
        self.hosts.reports()

    def shape_for(self, tokens: int, seqs: int) -> StepShape:
        return fitting(self.shapes, tokens, seqs)

    def launch(self, step: HostStep, extras: Extras | None = None) -> None:
        used, content = step.trimmed()
        more = b"" if extras is None else b"".join(part.tobytes() for part in extras)
        self.hosts.tell(message(Kind.STEP, (step.shape.tokens, step.shape.seqs, used, len(more)), content + more))

    def read(self, launched: None = None) -> Tokens:
        return self.hosts.tokens()

    def start_row(self, row: int, prompt: list[int], answer: list[int]) -> None:
        self.hosts.tell(message(Kind.START_ROW, (row, len(prompt), len(answer)), _bytes(prompt) + _bytes(answer)))

    @property
    def compiles_after_ready(self) -> int:
        return self.hosts.compiles_after_ready

    def close(self) -> None:
        self.hosts.close()


def _bytes(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def _reason(error: OSError) -> str:
    return str(error) or type(error).__name__
