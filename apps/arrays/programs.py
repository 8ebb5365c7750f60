"""How many programs XLA compiles, so that none is compiled once an engine is ready."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax

_this_thread = threading.local()


class CompileCount:
    """Counts programs that XLA compiles (or fetches from the persistent cache) in this process."""

    def __init__(self) -> None:
        self.programs = 0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration" and not getattr(_this_thread, "warms_up", False):
            self.programs += 1


@contextmanager
def warming_up() -> Iterator[None]:
    """Leave this thread's compiles out of every count: an engine that is ready must not count another's warm-up."""
    _this_thread.warms_up = True
    try:
        yield
    finally:
        _this_thread.warms_up = False
