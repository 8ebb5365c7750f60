"""Limits of callers that hold over all routers of a service: each learns what the others have let in."""

import logging
import threading
from typing import Any

from ray.serve.handle import DeploymentHandle

from apps.llm.text.admission import Admission, CallerUse
from ray_configs.llm import LLMConfig

log = logging.getLogger("podslice")

PERIOD_S = 0.5
"""For so long, and the time of a call, a router does not know what the others let in."""
ANSWER_S = 10.0

Told = tuple[str, dict[Any, CallerUse]]
"""A router's name, and what callers use there."""


class SharedLimits:
    """Tells one router's admission what callers use at the others, twice a second, until `close`.

    Args:
        name: this router's.
        routers: the deployment of all of them, which have a method `limits_used`.
        model: what to ask it for, where a router has several models.
    """

    def __init__(self, admission: Admission, name: str, routers: DeploymentHandle[Any], model: str | None = None):
        self._admission, self._name, self._routers = admission, name, routers
        self._asked = () if model is None else (model,)
        self._closing = threading.Event()
        threading.Thread(target=self._look_on, name="podslice-limits", daemon=True).start()

    @staticmethod
    def needed(config: LLMConfig, routers: int) -> bool:
        """Whether there are limits, and several routers that enforce them."""
        limits = [limit for each in config.callers.values() for limit in (each.max_requests, each.tokens_per_minute)]
        return routers > 1 and any(limits)

    def told(self) -> Told:
        """What the others are to know of this router."""
        return self._name, self._admission.use()

    def close(self) -> None:
        self._closing.set()

    def _look_on(self) -> None:
        while not self._closing.wait(PERIOD_S):
            try:
                self._look()
            except Exception as error:  # Serve itself, or all of them, take too long
                log.warning("routers do not say what callers use: %s", error)

    def _look(self) -> None:
        asked = self._routers.broadcast("limits_used", *self._asked).results(timeout_s=ANSWER_S, return_exceptions=True)
        told = [each for each in asked if isinstance(each, tuple)]
        if len(told) == len(asked):  # else what was known last is the best guess
            self._admission.learn({name: used for name, used in told if name != self._name})
