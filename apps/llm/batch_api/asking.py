"""Sends lines of batches to the server's own application, as a client would, but without a network."""

import asyncio
import json
import logging
from typing import Any

import httpx
from starlette.types import ASGIApp

from apps.llm.api import CALLER, Caller
from apps.llm.served.text_model import TextModel
from apps.serving.ingress.dialects.openai_errors import OpenAIError

log = logging.getLogger("podslice")

RETRIED = (429, 503, 529)
"""Statuses of a full or stopped engine, after which a line is sent again."""
WAIT_S = 1.0
"""Delay before a retry when the response has no Retry-After."""
MAX_WAIT_S = 60.0
ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)
MAX_REFUSALS = 10
"""Consecutive refusals by an idle engine before a line fails: it asks for more answers than the queue can ever hold."""


def is_being_cancelled() -> bool:
    """Whether somebody cancels this task. If not, a CancelledError in it is some library's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _seconds(retry_after: str | None) -> float:
    """A Retry-After header, which may also be a date."""
    try:
        return min(max(0.0, float(retry_after or WAIT_S)), MAX_WAIT_S)
    except ValueError:
        return WAIT_S


class Asker:
    """Sends lines to the model at background priority: they run in capacity that clients leave idle.

    Args:
        app: the application that serves the model, without the API key check.
    """

    def __init__(self, app: ASGIApp, model: TextModel):
        self.model = model
        self.open_lines = asyncio.Semaphore(model.max_batch_size)
        """Limits the lines in flight, over all batches; first come, first served."""
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://batch", timeout=None)

    async def ask(self, url: str, body: dict[str, Any], owner: str) -> tuple[int, Any]:
        """Returns (status, body) of the answer, retrying while the engine is full. Owners share the engine fairly."""
        sent = json.dumps(body).encode()
        refusals = 0
        CALLER.set(Caller(owner, background=True))  # a context variable: set for this line's task only
        while True:
            try:
                answer = await self._client.post(url, content=sent, headers={"Content-Type": "application/json"})
                refusals = refusals + 1 if self._refused_while_idle(answer.status_code) else 0
                if answer.status_code not in RETRIED or refusals == MAX_REFUSALS:
                    return answer.status_code, answer.json()
            except (
                BaseException
            ) as error:  # one line's failure must not fail the batch; a library's panic is no Exception
                if isinstance(error, ENDS) or is_being_cancelled():
                    raise
                log.exception("a line of a batch failed")
                failed = OpenAIError(500, "The server failed; its log says why.", None, "internal_error")
                return failed.status, failed.body()
            await asyncio.sleep(_seconds(answer.headers.get("retry-after")))

    def _refused_while_idle(self, status: int) -> bool:
        """Whether the engine refuses the line although it is idle."""
        stats = self.model.stats()
        return status != 503 and stats.running + stats.waiting == 0
