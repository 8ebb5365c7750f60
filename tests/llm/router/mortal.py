"""An engine that dies when it is told to, as its fleet sees it: silent from one token to the next."""

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from apps.llm.api import EngineStopped, Sink, TokenOutput, TokenRequest
from apps.llm.engine.interface import TokenEngine
from apps.llm.router.fleet import Fleet
from apps.llm.text import Engine

_numbers = itertools.count(2**48)  # several of them may stand before one engine, and each has ids of its own there


class Mortal:
    """A `TokenEngine` over another one, until it dies. Nothing that comes later is handed on.

    Args:
        after: tokens that it hands on before its death.
    """

    def __init__(self, engine: TokenEngine, fleet: Fleet, after: int | None = None):
        self._engine, self._fleet, self._left = engine, fleet, after
        self._theirs = dict[int, int]()  # ids: the engine's -> the fleet's
        self._ours = dict[int, int]()
        self._sink: Sink
        self.dead = self.silent = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, requests: Sequence[TokenRequest], sink: Sink) -> "Future[None]":
        if self.dead:
            raise EngineStopped("is dead")
        self._sink, numbered = sink, list[TokenRequest]()
        for request in requests:
            number = next(_numbers)
            self._theirs[number], self._ours[request.id] = request.id, number
            numbered.append(msgspec.structs.replace(request, id=number))
        return self._engine.submit(numbered, self._take)

    def _take(self, outputs: list[TokenOutput]) -> None:
        shown = list[TokenOutput]()
        for output in outputs:
            if self.dead or self.silent:
                return
            if self._left is not None:
                if self._left < len(output.token_ids):
                    self._sink(shown)
                    self.die()
                    return
                self._left -= len(output.token_ids)
            shown.append(msgspec.structs.replace(output, request=self._theirs[output.request]))
        self._sink(shown)

    def abort(self, ids: Sequence[int]) -> None:
        self._engine.abort([self._ours[id] for id in ids if id in self._ours])

    def die(self) -> None:
        self.dead = True
        self._engine.abort(list(self._theirs))
        self._fleet.lost(self, "was killed")


def in_words(engine: Engine, fleet: Fleet) -> Engine:
    """The engine's model, over a fleet."""
    return Engine(engine.config, fleet, engine.tokenizer, engine.reranker, engine.pooling, engine.sampling_defaults)
