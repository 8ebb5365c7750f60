"""Runs one engine on several hosts: sends each executor call to all hosts as one message, and reads tokens from one.

    loop -> LockstepExecutor --TCP--> work(), with a LocalExecutor, on host 0 --tokens--> loop
                             --TCP--> work(), with a LocalExecutor, on host 1 ...

The hosts run one JAX program. They stay in lockstep because each gets the same messages in the same order. Only the
first host sends tokens back; any host can report a failure. Each DP rank has its own hosts, or its own devices of a
host, and its own loop and connections.

Plain TCP connections, not actor calls: `tests/llm/slice/overhead.py` has the numbers. Besides, the kernel closes a
connection the moment the process at its other end dies.
"""

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np

from apps.arrays.layout import Devices, Layout
from apps.llm.engine.adapters import stack
from apps.llm.engine.adapters.stack import Adapted
from apps.llm.engine.execute.readout import Readout
from apps.llm.engine.execute.sampling import TokenConstraints
from apps.llm.engine.execute.step import HostStep, StepShape
from apps.llm.engine.executor_protocol import Tokens, fitting, shapes_with_readout, step_shapes
from apps.llm.engine.hosts.rank_workers import RankWorkers, SliceFailed
from apps.llm.engine.hosts.wire import NO_DP_RANK, Listener, MessageKind, message
from apps.llm.engine.images.encoding import Encoding, EncodingSizes
from apps.llm.engine.prefix.transfer import StateTransfer, Transfer
from apps.llm.engine.weights.model import Model
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")


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


class LockstepExecutor:
    """The `Executor` of a model on the devices of several hosts."""

    def __init__(self, config: EngineConfig, model: Model, hosts: RankWorkers):
        self.arch, self.hosts, self.skips_padding = model.arch, hosts, False
        self.pages = self.host_pages = self.programs_compiled = 0
        self.prefix_states = config.prefix_states or 0
        self.encodings = EncodingSizes.of(config, model.arch)
        self.shapes = step_shapes(config, model.max_len(config), both_ways=model.arch.sees_both_ways)
        self.readout_shapes = shapes_with_readout(self.shapes)

    def make_cache(self, calibration_ids: list[int]) -> int:
        self.hosts.tell(message(MessageKind.MAKE_CACHE, (len(calibration_ids),), _bytes(calibration_ids)))
        self.pages = self._agreed("KV cache pages")
        return self.pages

    def make_host_cache(self) -> None:
        self.hosts.tell(message(MessageKind.MAKE_HOST_CACHE))
        self.host_pages = self._agreed("pages in host memory")

    def _agreed(self, what: str) -> int:
        """The number that all hosts report."""
        numbers = self.hosts.reports()
        if len(set(numbers)) > 1:
            raise SliceFailed(f"the hosts disagree about the number of {what}: {numbers}")
        return numbers[0]

    def warm_up(self) -> None:
        self.hosts.tell(message(MessageKind.WARM_UP))
        self.programs_compiled = max(self.hosts.reports())

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

    def encode(self, call: Encoding) -> None:
        self.hosts.tell(message(MessageKind.ENCODE, (call.tokens,), call.content()))

    def start_slot(self, slot: int, prompt: list[int], answer: list[int]) -> None:
        self.hosts.tell(
            message(MessageKind.START_SLOT, (slot, len(prompt), len(answer)), _bytes(prompt) + _bytes(answer))
        )

    def clean(self, pages: Sequence[int]) -> None:
        self.hosts.tell(message(MessageKind.CLEAN, (), _bytes(pages)))

    def keep(self, transfer: Transfer) -> None:
        self.hosts.tell(message(MessageKind.KEEP, (), _bytes(transfer.pages) + _bytes(transfer.rows)))

    def bring_back(self, transfer: Transfer) -> None:
        self.hosts.tell(message(MessageKind.BRING_BACK, (), _bytes(transfer.pages) + _bytes(transfer.rows)))

    def keep_states(self, transfer: StateTransfer) -> None:
        self.hosts.tell(message(MessageKind.KEEP_STATES, (), _bytes(transfer.slots) + _bytes(transfer.rows)))

    def bring_back_states(self, transfer: StateTransfer) -> None:
        self.hosts.tell(message(MessageKind.BRING_BACK_STATES, (), _bytes(transfer.slots) + _bytes(transfer.rows)))

    def write_adapter(self, index: int, layer: int, values: Adapted | None) -> None:
        self.hosts.tell(message(MessageKind.ADAPTER, (index, layer), b"" if values is None else stack.packed(values)))

    @property
    def compiles_after_ready(self) -> int:
        return self.hosts.compiles_after_ready

    def close(self) -> None:
        self.hosts.close()


def _bytes(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()
