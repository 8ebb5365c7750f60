"""A host of a slice: runs the calls of the engine's LockstepExecutor on its own LocalExecutor, in the same order.

Each DP rank has two threads: one launches steps as their messages arrive, the other waits for their results. So step
n + 1 is on its way to the device while step n runs, and neither waits for the network.
"""

import logging
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

import jax
import numpy as np
from jax.sharding import Mesh

from apps.arrays import distributed
from apps.arrays.layout import Layout
from apps.arrays.program_cache import use_compile_cache
from apps.arrays.stored_programs.loading import PreparedPrograms
from apps.arrays.stored_programs.trial import TrialHosts
from apps.llm.engine.adapters import stack
from apps.llm.engine.execute import stored
from apps.llm.engine.execute.local import LocalExecutor
from apps.llm.engine.execute.readout import Launched, Readout
from apps.llm.engine.execute.sampling import TokenConstraints
from apps.llm.engine.execute.step import HostStep
from apps.llm.engine.hosts.wire import NO_DP_RANK, Connection, MessageKind, message
from apps.llm.engine.images.encoding import Encoding
from apps.llm.engine.prefix.transfer import StateTransfer, Transfer
from apps.llm.engine.weights.model import Model
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")


@dataclass(frozen=True)
class Leader:
    """Address and secret of the engine's process, which the hosts connect to."""

    address: tuple[str, int]
    secret: bytes

    def connect(self, rank: int, dp_rank: int = NO_DP_RANK) -> Connection:
        connection = Connection(socket.create_connection(self.address, timeout=60))
        connection.send(message(MessageKind.HELLO, (rank, dp_rank), self.secret))
        return connection


def exit_with(connection: Connection) -> None:
    """End this process as soon as the engine's end of the connection closes.

    By os._exit, because the thread that runs steps may be stuck in a collective, and JAX's own shutdown waits for
    hosts that are gone.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(connection.socket, select.POLLRDHUP)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, name="podslice-leader-watch", daemon=True).start()


def work(leader: Leader, connection: Connection, config: EngineConfig, coordinator: str, rank: int, hosts: int) -> None:
    """Join the hosts' program, load this host's part of the model, and run the engine's calls until it disconnects.

    Reports any error to the engine and stops. See `distributed.join` for the last arguments.
    """
    with _reporting_errors(connection, rank):
        use_compile_cache(config.compile_cache, hosts)
        model = Model.open(config)
        stored.try_sets(config, model, TrialHosts(coordinator, rank, hosts))
        distributed.join(coordinator, rank, hosts)
        connection.send(message(MessageKind.DONE, (distributed.here().count,)))
        layout = _layout(connection)
        config = model.settle(config)
        model = model.at_size(config, layout.tensor)
        of_rank, meshes = layout.of_dp_rank(config, hosts), distributed.meshes(layout)
        prepared = stored.find(of_rank, model, meshes[0])
        for dp_rank, mesh in enumerate(meshes):
            if distributed.takes_part(mesh):
                first = rank == min(device.process_index for device in mesh.devices.flat)
                worker = Worker(leader.connect(rank, dp_rank), rank, first)
                orders = mesh, of_rank, model, prepared
                threading.Thread(
                    target=worker.run, args=orders, name=f"podslice-dp-rank-{dp_rank}", daemon=True
                ).start()


def _layout(connection: Connection) -> Layout:
    while True:
        for kind, (data, tensor, *_), _ in connection.receive():
            if kind is not MessageKind.LAYOUT:
                raise ValueError(f"the engine sent {kind.name} before the layout")
            return Layout(data, tensor)


class Worker:
    """This host's part of one DP rank."""

    def __init__(self, connection: Connection, rank: int, first: bool):
        self._connection, self._rank, self._first = connection, rank, first
        self._launched: SimpleQueue[Launched] = SimpleQueue()

    def run(self, mesh: Mesh, config: EngineConfig, model: Model, prepared: PreparedPrograms | None) -> None:
        """Load this host's part of the model, then run the engine's calls until the connection ends."""
        with _reporting_errors(self._connection, self._rank):
            executor = LocalExecutor(mesh, config, model, prepared=prepared)
            self._connection.send(message(MessageKind.DONE))
            self.run_calls(executor)

    def run_calls(self, executor: LocalExecutor) -> None:
        """Run the engine's calls on the executor. Raises ConnectionError when the engine is gone."""
        self._executor = executor
        threading.Thread(target=self._report, name="podslice-results", daemon=True).start()
        while True:
            for kind, numbers, content in self._connection.receive():
                self._run_call(kind, numbers, content)

    def _run_call(self, kind: MessageKind, numbers: tuple[int, ...], content: bytes) -> None:
        executor = self._executor
        if kind is MessageKind.STEP:
            tokens, seqs, used, more, kinds = numbers
            shape = executor.shape_for(tokens, seqs)
            wanted = len(content) - 4 * tokens * kinds.bit_count()  # where the readout begins
            end = wanted - more
            step = HostStep.whole(shape, used, memoryview(content)[:end])
            constraints = _constraints(content[end:wanted], seqs, executor.arch.vocab_size) if more else None
            readout = Readout.of(kinds, content[wanted:]) if kinds else None
            self._launched.put(executor.launch(step, constraints, readout))
        elif kind is MessageKind.START_SLOT:
            slot, prompt, *_ = numbers
            ids = np.frombuffer(content, np.int32)
            executor.start_slot(slot, ids[:prompt], ids[prompt:])
        elif kind is MessageKind.ADAPTER:
            index, layer, *_ = numbers
            executor.write_adapter(index, layer, stack.unpacked(executor.adapter_forms[layer], content))
        elif kind is MessageKind.ENCODE:
            executor.encode(Encoding.of(numbers[0], content))
        elif kind is MessageKind.CLEAN:
            executor.clean(np.frombuffer(content, np.int32).tolist())
        elif kind in (MessageKind.KEEP, MessageKind.BRING_BACK):
            pages, rows = np.frombuffer(content, np.int32).reshape(2, -1).tolist()
            copy = executor.keep if kind is MessageKind.KEEP else executor.bring_back
            copy(Transfer(pages, rows))
        elif kind in (MessageKind.KEEP_STATES, MessageKind.BRING_BACK_STATES):
            slots, rows = np.frombuffer(content, np.int32).reshape(2, -1).tolist()
            keeps = kind is MessageKind.KEEP_STATES
            (executor.keep_states if keeps else executor.bring_back_states)(StateTransfer(slots, rows))
        elif kind is MessageKind.MAKE_CACHE:
            ids = np.frombuffer(content, np.int32).tolist()
            self._connection.send(message(MessageKind.DONE, (executor.make_cache(ids),)))
        elif kind is MessageKind.WARM_UP:
            executor.warm_up()
            self._connection.send(message(MessageKind.DONE, (executor.programs_compiled,)))
        elif kind is MessageKind.MAKE_HOST_CACHE:
            executor.make_host_cache()
            self._connection.send(message(MessageKind.DONE, (executor.host_pages,)))
        else:
            raise ValueError(f"{kind.name} is not a message for a host")

    def _report(self) -> None:
        """Wait for each step's results. The rank's first host sends them; the others only catch errors."""
        with _reporting_errors(self._connection, self._rank):
            while True:
                launched = self._launched.get()
                if not self._first:
                    jax.block_until_ready(launched)
                    continue
                samples, scores, pooled = launched.on_host()
                numbers = [self._executor.compiles_after_ready, *samples.shape]
                numbers += [0 if scores is None else scores.size, 0 if pooled is None else pooled.shape[1]]
                content = b"".join(part.tobytes() for part in (samples, scores, pooled) if part is not None)
                self._connection.send(message(MessageKind.TOKENS, tuple(numbers), content))


def _constraints(content: bytes, seqs: int, vocab: int) -> TokenConstraints:
    """Unpack TokenConstraints from the concatenated bytes of its arrays."""
    parts, offset = [], 0
    for like in TokenConstraints.empty(seqs, vocab):
        parts.append(np.frombuffer(content, like.dtype, like.size, offset).reshape(like.shape))
        offset += like.nbytes
    return TokenConstraints(*parts)


@contextmanager
def _reporting_errors(connection: Connection, rank: int) -> Iterator[None]:
    """Report errors in the block to the engine. It is not an error if the engine is gone."""
    try:
        yield
    except ConnectionError:
        log.info("host %d: the engine is gone", rank)
    except BaseException as error:
        log.exception("host %d failed", rank)
        try:
            connection.send(message(MessageKind.FAILED, (), f"{type(error).__name__}: {error}".encode()))
        except OSError:
            log.info("the engine is gone")
