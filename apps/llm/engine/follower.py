"""A host of a slice: does with its LocalExecutor whatever the engine's LockstepExecutor says, in that order.

Two threads: one launches steps as their messages come, the other waits for their results. So step n + 1 is on its
way to the device while step n runs, and neither waits for the network.
"""

import logging
import os
import select
import socket
import threading
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np

from apps.llm.engine import distributed
from apps.llm.engine.executor import LocalExecutor, ThisProcess, use_compile_cache
from apps.llm.engine.model import Model
from apps.llm.engine.sampling import Extras
from apps.llm.engine.step import HostStep, StepShape
from apps.llm.engine.wire import Connection, Kind, message
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")


def connect(leader: tuple[str, int], secret: bytes, rank: int) -> Connection:
    """To the engine's process, which listens there."""
    connection = Connection(socket.create_connection(leader, timeout=60))
    connection.send(message(Kind.HELLO, (rank,), secret))
    return connection


def exit_with(connection: Connection) -> None:
    """This process ends in the moment in which the engine's end of the connection closes.

    By os._exit: the thread that runs steps may be in a collective that never ends, and JAX's own farewell waits for
    hosts that are gone.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(connection.socket, select.POLLRDHUP)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, name="podslice-leader-watch", daemon=True).start()


def follow(connection: Connection, config: EngineConfig, coordinator: str, rank: int, hosts: int) -> None:
    """Join the hosts' program, load this host's part of the model, and obey until the connection ends.

    Any error is told to the engine, and ends the work. See `distributed.join` for the arguments.
    """
    try:
        use_compile_cache(config.compile_cache)
        distributed.join(coordinator, rank, hosts)
        place = ThisProcess()
        shards = place.shards(config)
        connection.send(message(Kind.DONE, (shards,)))
        executor = place.load(config, Model.open(config, shards))
        connection.send(message(Kind.DONE))
        _Follower(connection, rank, executor).run()
    except ConnectionError:
        log.info("host %d: the engine is gone", rank)
    except BaseException as error:
        log.exception("host %d failed", rank)
        _tell_failure(connection, error)


class _Follower:
    def __init__(self, connection: Connection, rank: int, executor: LocalExecutor):
        self._connection, self._rank, self._executor = connection, rank, executor
        self._launched: SimpleQueue[jax.Array] = SimpleQueue()
        self._ready = False
        threading.Thread(target=self._report, name="podslice-results", daemon=True).start()

    def run(self) -> None:
        while True:
            for kind, numbers, content in self._connection.receive():
                self._obey(kind, numbers, content)

    def _obey(self, kind: Kind, numbers: tuple[int, ...], content: bytes) -> None:
        executor = self._executor
        if kind is Kind.STEP:
            tokens, seqs, used, more = numbers
            shape = StepShape(tokens, seqs, executor.max_pages)
            end = len(content) - more
            step = HostStep.whole(shape, used, memoryview(content)[:end])
            extras = _extras(content[end:], seqs, executor.arch.vocab_size) if more else None
            self._launched.put(executor.launch(step, extras))
        elif kind is Kind.START_ROW:
            row, prompt, *_ = numbers
            ids = np.frombuffer(content, np.int32)
            executor.start_row(row, ids[:prompt], ids[prompt:])
        elif kind is Kind.MAKE_CACHE:
            ids = np.frombuffer(content, np.int32).tolist()
            self._connection.send(message(Kind.DONE, (executor.make_cache(ids),)))
        elif kind is Kind.WARM_UP:
            executor.warm_up()
            self._ready = True
            self._connection.send(message(Kind.DONE))
        else:
            raise ValueError(f"the engine does not say {kind.name}")

    def _report(self) -> None:
        """Waits for each step: on host 0 to send its tokens, on the others for the errors that it may end in."""
        try:
            while True:
                samples: Any = self._launched.get()
                if self._rank:
                    samples.block_until_ready()
                    continue
                host = np.asarray(samples)
                compiled = self._executor.compiles_after_ready
                self._connection.send(message(Kind.TOKENS, (compiled, *host.shape), host.tobytes()))
        except ConnectionError:
            log.info("host %d: the engine is gone", self._rank)
        except Exception as error:
            log.exception("host %d failed", self._rank)
            _tell_failure(self._connection, error)


def _extras(content: bytes, seqs: int, vocab: int) -> Extras:
    """From the bytes of its arrays, one after the other."""
    parts, offset = [], 0
    for like in Extras.empty(seqs, vocab):
        parts.append(np.frombuffer(content, like.dtype, like.size, offset).reshape(like.shape))
        offset += like.nbytes
    return Extras(*parts)


def _tell_failure(connection: Connection, error: BaseException) -> None:
    try:
        connection.send(message(Kind.FAILED, (), f"{type(error).__name__}: {error}".encode()))
    except OSError:
        log.info("the engine is gone")
