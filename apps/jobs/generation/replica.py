"""One replica: an engine on its slice that answers chunks of lines. Ray Data runs it as an actor.

A call takes one chunk, submits all its lines and waits for them. Many calls run at once, each in its own thread: the
engine batches the lines of all of them, and while one chunk waits for its longest answer, the others keep the batch
full. An event loop, or threads that read answers as they grow, would be woken at every step for every open request;
these threads are woken once, when the answer is complete.

A replica fails as a whole, as a server's does: when its engine or a host of its slice is dead or stuck, the process
exits, Ray restarts it (on any free slice) and gives it its chunks again.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import pyarrow as pa
import ray

from apps.jobs.generation.requests import AnswerLine, BadLine, Defaults, Line, Open, collect, read, submit
from apps.llm.api import AnswerFailed, EngineStopped
from apps.llm.slice import load_engine
from apps.llm.slice_reservation import give_back_all
from apps.serving.errors import panics_as
from apps.serving.ingress.dialects.openai_errors import OpenAIError
from apps.serving.replica import host
from ray_configs.llm import LLMConfig

log = logging.getLogger("podslice")

CHECK_PERIOD_S = 1.0
NO_LIMIT = 2**31
"""Limit of waiting requests: a replica's open chunks bound them already."""


class Replica:
    """
    Args:
        config: of the engine to load. If that fails, the run fails.
        defaults: for fields that lines leave out.
        deaths: the run's Deaths actor.
    """

    def __init__(self, config: LLMConfig, defaults: Defaults, deaths: Any):
        logging.basicConfig(format="%(message)s")
        self._deaths = deaths
        actor = ray.get_runtime_context().get_actor_id() or ""
        ray.get(deaths.started.remote(actor))
        self._model, self._defaults, self._deadline_s = config.served_name, defaults, config.health_step_deadline_s
        if config.spans_hosts:
            give_back_all(actor)  # slices that this actor's previous process held
        self._engine, self._hosts = host(config.model_copy(update={"max_waiting": NO_LIMIT}), load_engine)
        self._ready_at = time.time()
        threading.Thread(target=self._watch, name="podslice-watch", daemon=True).start()

    def __call__(self, chunk: pa.Table) -> pa.Table:
        """Turn a row of `indices` and `lines` into one of `indices`, `answers` and counts."""
        row = chunk.to_pylist()[0]
        try:
            opened = [self._open(index, text) for index, text in zip(row["indices"], row["lines"])]
            for one in reversed(opened):  # see Open.wait
                if isinstance(one, Open):
                    one.wait()
            answers = [one if isinstance(one, AnswerLine) else collect(one) for one in opened]
        except EngineStopped as error:
            self._die(str(error))
        return pa.table(
            {
                "indices": pa.array([row["indices"]], pa.list_(pa.int64())),
                "answers": pa.array([[answer.text.encode() for answer in answers]], pa.list_(pa.binary())),
                "errors": [sum(answer.error for answer in answers)],
                "prompt_tokens": [sum(answer.prompt_tokens for answer in answers)],
                "completion_tokens": [sum(answer.completion_tokens for answer in answers)],
                "ready_at": [self._ready_at],
            }
        )

    def _open(self, index: int, text: bytes) -> Open | AnswerLine:
        line: Line | None = None
        try:
            with panics_as(AnswerFailed):
                line = read(index, text, self._defaults)
                return submit(line, self._engine, self._model)
        except EngineStopped:
            raise
        except BadLine as error:
            return AnswerLine(error.answer(), error=True)
        except Exception as error:  # one line must not fail the others
            ids, wrapped = ({}, False) if line is None else (line.ids, line.wrapped)
            return _failed(index, ids, wrapped, error)

    def _watch(self) -> None:
        """End the process when its engine or a host of its slice is dead or stuck."""
        while True:
            time.sleep(CHECK_PERIOD_S)
            try:
                if self._hosts is not None:
                    asyncio.run(self._hosts.check())
                self._engine.check(self._deadline_s)
            except Exception as error:
                self._die(str(error))

    def _die(self, reason: str) -> NoReturn:
        node = ray.util.get_node_ip_address()
        print(f"the replica on {node} exits and will be restarted: {reason}", file=sys.stderr, flush=True)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._deaths.reason.remote(reason), timeout=5)
        if self._hosts is not None:
            self._hosts.close()
        os._exit(1)


def _failed(index: int, ids: Mapping[str, Any], wrapped: bool, error: Exception) -> AnswerLine:
    """The answer to a line by which the replica fails."""
    log.error("line %d failed", index + 1, exc_info=error)
    known = OpenAIError(500, f"{type(error).__name__}: {error}", None, "internal_error")
    return AnswerLine(BadLine(index, ids, wrapped, known).answer(), error=True)
