"""Puts requests to a token engine, near or far, and reads what comes."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from apps.llm.api import Sampling, TokenOutput, TokenRequest
from apps.llm.engine.interface import TokenEngine
from apps.llm.router.wire.messages import Endpoint
from apps.llm.router.wire.remote import RemoteEngine

NUMBERS = itertools.count(1)
PATIENCE_S = 120.0


class Reader:
    """Takes the outputs of requests."""

    def __init__(self, ids: Sequence[int]):
        self.outputs: dict[int, list[TokenOutput]] = {id: [] for id in ids}
        self.ended, self.began = threading.Event(), threading.Event()
        self.calls = 0

    def sink(self, outputs: list[TokenOutput]) -> None:
        self.calls += 1
        for output in outputs:
            self.outputs[output.request].append(output)
            if output.token_ids:
                self.began.set()
        if all(each and each[-1].finish_reason for each in self.outputs.values()):
            self.ended.set()

    def tokens(self) -> list[list[int]]:
        return [[token for output in each for token in output.token_ids] for each in self.outputs.values()]

    def reasons(self) -> list[str | None]:
        return [each[-1].finish_reason for each in self.outputs.values()]


def request(prompt_ids: Sequence[int] = (0, 5, 6, 7), limit: int = 24, **fields: Any) -> TokenRequest:
    sampling = fields.pop("sampling", Sampling(seed=1, temperature=0, ignore_eos=True))
    return TokenRequest(id=next(NUMBERS), prompt_ids=tuple(prompt_ids), limit=limit, sampling=sampling, **fields)


def start(engine: TokenEngine, *requests: TokenRequest) -> Reader:
    reader = Reader([each.id for each in requests])
    engine.submit(requests, reader.sink).result(PATIENCE_S)
    return reader


def ask(engine: TokenEngine, *requests: TokenRequest) -> list[list[TokenOutput]]:
    """All outputs of each request, under the ids 0, 1, ..., and without the clock."""
    requests = tuple(msgspec.structs.replace(each, id=next(NUMBERS)) for each in requests)
    reader = start(engine, *requests)
    assert reader.ended.wait(PATIENCE_S)
    return [
        [msgspec.structs.replace(output, request=i, entered_ns=0) for output in each]
        for i, each in enumerate(reader.outputs.values())
    ]


class Connected:
    """A connection, and what it told of the replica."""

    def __init__(self, endpoint: Endpoint):
        self.losses: list[tuple[RemoteEngine, str, str]] = []  # with the name of the thread that said so
        self.lost, self.draining = threading.Event(), threading.Event()
        self.drains = 0
        self.engine = RemoteEngine.connect(endpoint, self._lost, self._drain, timeout_s=PATIENCE_S)

    def _lost(self, remote: RemoteEngine, reason: str) -> None:
        self.losses.append((remote, reason, threading.current_thread().name))
        self.lost.set()

    def _drain(self, remote: RemoteEngine) -> None:
        self.drains += 1
        self.draining.set()


def until(true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    ends = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)
