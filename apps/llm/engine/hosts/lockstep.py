"""Runs one engine on several hosts: sends each executor call to all hosts as one message, and reads tokens from one.

    loop -> LockstepExecutor --TCP--> work(), with a LocalExecutor, on host 0 --tokens--> loop
                             --TCP--> work(), with a LocalExecutor, on host 1 ...

The hosts run one JAX program. They stay in lockstep because each gets the same messages in the same order. Only the
first host sends tokens back; any host can report a failure. Each DP rank has its own hosts, or its own devices of a
host, and its own loop and connections.

Plain TCP connections, not actor calls: `tests/llm/slice/overhead.py` has the numbers. Besides, the kernel closes a
connection the moment the process at its other end dies.
"""

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from apps.arrays.layout import Devices, Layout
from apps.llm.engine.adapters import stack
from apps.llm.engine.adapters.stack import Adapted
from apps.llm.engine.execute.readout import SCORE_ROWS, Readout
from apps.llm.engine.execute.sampling import TokenConstraints
from apps.llm.engine.execute.step import HostStep, StepShape
from apps.llm.engine.executor_protocol import Tokens, fitting, shapes_with_readout, step_shapes
from apps.llm.engine.hosts.wire import NO_DP_RANK, Connection, Listener, MessageKind, message
from apps.llm.engine.weights.model import Model
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")


class SliceFailed(RuntimeError):
    """A host of the slice has died, hangs or failed; the others cannot continue without it."""


class SliceWorkers:
    """The engine's connections to all hosts of a slice, from their first connection to the slice's release.

    Raises:
        TimeoutError: a host did not connect.
    """

    def __init__(
        self,
        listener: Listener,
        hosts: int,
        timeout_s: float,
        step_deadline_s: float,
        on_close: Callable[[], None] = lambda: None,
    ):
        self.dp_ranks: list[RankWorkers] = []
        self._listener, self._timeout_s, self._deadline_s = listener, timeout_s, step_deadline_s
        self._on_close, self._closing, self._closed = on_close, threading.Lock(), False
        first = listener.accept([(rank, NO_DP_RANK) for rank in range(hosts)], timeout_s, step_deadline_s)
        self._hosts = RankWorkers(first, range(hosts), step_deadline_s)

    def devices(self, config: EngineConfig) -> Devices:
        """The slice's devices. Waits for the hosts to join one JAX program."""
        counts = self._hosts.reports()
        self._devices = Devices(counts[0], len(counts))
        return self._devices

    def load(self, config: EngineConfig, model: Model, layout: Layout) -> "list[LockstepExecutor]":
        """Have the hosts load their parts of the model; see `ExecutorProvider.load`. Call `devices` first.

        Raises:
            SliceFailed, TimeoutError: a host failed to.
        """
        self._hosts.tell(message(MessageKind.LAYOUT, (layout.data, layout.tensor)))
        ranks = [layout.hosts_of(dp_rank, self._devices) for dp_rank in range(layout.data)]
        places = [(rank, dp_rank) for dp_rank, own in enumerate(ranks) for rank in own]
        connections = iter(self._listener.accept(places, self._timeout_s, self._deadline_s))
        self._listener.close()
        self.dp_ranks = [
            RankWorkers([next(connections) for _ in own], own, self._deadline_s, self.close) for own in ranks
        ]
        executors = [LockstepExecutor(layout.of_dp_rank(config), model, hosts) for hosts in self.dp_ranks]
        try:
            for executor in executors:  # each host has its part of the weights then
                executor.hosts.reports()
        except BaseException:
            for executor in executors:
                executor.close()
            raise
        return executors

    @property
    def failure(self) -> str | None:
        return next((hosts.failure for hosts in (*self.dp_ranks, self._hosts) if hosts.failure), None)

    def fail(self, reason: str) -> None:
        """Fail the slice; see `RankWorkers.fail`. Thread-safe."""
        for hosts in (*self.dp_ranks, self._hosts):
            hosts.fail(reason)

    def close(self) -> None:
        """Release the whole slice; all DP ranks end together. Idempotent and thread-safe."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self.fail("the slice was given back")
        self._listener.close()
        self._hosts.close()
        self._on_close()


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


class LockstepExecutor:
    """The `Executor` of a model on the devices of several hosts."""

    def __init__(self, config: EngineConfig, model: Model, hosts: RankWorkers):
        self.arch, self.pages, self.hosts, self.skips_padding = model.arch, 0, hosts, False
        self.shapes = step_shapes(config, model.max_len(config))
        self.readout_shapes = shapes_with_readout(self.shapes)

    def make_cache(self, calibration_ids: list[int]) -> int:
        self.hosts.tell(message(MessageKind.MAKE_CACHE, (len(calibration_ids),), _bytes(calibration_ids)))
        pages = self.hosts.reports()
        if len(set(pages)) > 1:
            raise SliceFailed(f"the hosts disagree about the number of KV cache pages: {pages}")
        self.pages = pages[0]
        return self.pages

    def warm_up(self) -> None:
        self.hosts.tell(message(MessageKind.WARM_UP))
        self.hosts.reports()

    def shape_for(self, tokens: int, seqs: int, reads: bool = False) -> StepShape:
        return fitting(self.readout_shapes if reads else self.shapes, tokens, seqs)

    def launch(
        self, step: HostStep, constraints: TokenConstraints | None = None, readout: Readout | None = None
    ) -> None:
        used, content = step.trimmed()
        more = b"" if constraints is None else b"".join(part.tobytes() for part in constraints)
        kinds, wanted = (0, b"") if readout is None else readout.content()
        numbers = step.shape.tokens, step.shape.seqs, used, len(more), kinds
        self.hosts.tell(message(MessageKind.STEP, numbers, content + more + wanted))

    def read(self, launched: None = None) -> Tokens:
        return self.hosts.tokens()

    def start_slot(self, slot: int, prompt: list[int], answer: list[int]) -> None:
        self.hosts.tell(
            message(MessageKind.START_SLOT, (slot, len(prompt), len(answer)), _bytes(prompt) + _bytes(answer))
        )

    def clean(self, pages: Sequence[int]) -> None:
        self.hosts.tell(message(MessageKind.CLEAN, (), _bytes(pages)))

    def write_adapter(self, index: int, layer: int, values: Adapted | None) -> None:
        self.hosts.tell(message(MessageKind.ADAPTER, (index, layer), b"" if values is None else stack.packed(values)))

    @property
    def compiles_after_ready(self) -> int:
        return self.hosts.compiles_after_ready

    def close(self) -> None:
        self.hosts.close()


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


def _bytes(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def _reason(error: OSError) -> str:
    return str(error) or type(error).__name__
