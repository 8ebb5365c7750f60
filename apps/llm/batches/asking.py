"""Asks the server's own application, as a client would, without a network in between."""

import asyncio
import json
import logging
from typing import Any

import httpx
from starlette.types import ASGIApp

from apps.llm.api import CALLER, Caller
from apps.llm.engine_model import EngineModel
from apps.serving.ingress.openai_errors import OpenAIError

log = logging.getLogger("podslice")

AGAIN = (429, 503, 529)
"""The engine is full, or stopped: the line is asked again."""
WAIT_S = 1.0
"""Until then, where the answer does not say."""
MOST_IN_VAIN = 10
"""A line that an idle engine refused so often asks for more answers than may ever wait: the refusal is its answer."""


class Asker:
    """Takes lines of batches to the model, in the background: they get the places that clients leave.

    Args:
        app: answers for the model, without API keys.
    """

    def __init__(self, app: ASGIApp, model: EngineModel):
        self.model = model
        self.places = asyncio.Semaphore(model.places)
        """Held by each line that is being asked; who waits longest is next, whatever batch it is of."""
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://batch", timeout=None)

    async def ask(self, url: str, body: dict[str, Any], owner: str) -> tuple[int, Any]:
        """(status, body) of the answer, sooner or later. Callers of the background share it by their names."""
        sent = json.dumps(body).encode()
        in_vain = 0
        CALLER.set(Caller(owner, background=True))  # of this line's task alone
        while True:
            try:
                answer = await self._client.post(url, content=sent, headers={"Content-Type": "application/json"})
            except Exception:  # of one line of very many: it must not take the others with it
                log.exception("a line of a batch failed")
                failed = OpenAIError(500, "The server failed; its log says why.", None, "internal_error")
                return failed.status, failed.body()
            in_vain = in_vain + 1 if self._refuses_for_nobody(answer.status_code) else 0
            if answer.status_code not in AGAIN or in_vain == MOST_IN_VAIN:
                return answer.status_code, answer.json()
            await asyncio.sleep(float(answer.headers.get("retry-after", WAIT_S)))

    def _refuses_for_nobody(self, status: int) -> bool:
        """Whether an engine with nothing else to do calls itself full."""
        stats = self.model.stats()
        return status != 503 and stats.running + stats.waiting == 0
