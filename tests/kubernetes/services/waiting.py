"""Waits with an end, and with what was waited for in the message."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 120
SERVICE_S = 15 * 60
"""Until a service is Ready: the Pods of a Ray cluster on two cores, one after another."""


def until(said: str, what: Callable[[], Any], patience_s: float = PATIENCE_S, every_s: float = 0.2) -> Any:
    """What `what` returns, once it is true."""
    end = time.monotonic() + patience_s
    while not (found := what()):
        assert time.monotonic() < end, f"not after {patience_s} s: {said}"
        time.sleep(every_s)
    return found
