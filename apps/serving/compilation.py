"""XLA compilation for every application: the persistent cache, and a count of compiles."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from apps.serving.program_cache import install

log = logging.getLogger("podslice")

_this_thread = threading.local()


def use_compile_cache(folder: str | None) -> None:
    """Cache all compiled programs in a folder, even small and quickly compiled ones. None: no cache.

    A folder that cannot be used is logged, and done without.
    """
    if folder is None:
        return
    path = Path(folder).expanduser()
    os.environ.setdefault("NUMBA_CACHE_DIR", str(path / "numba"))  # the CPU's kernels
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning("compile_cache: compiled programs are not kept, so the next start compiles them again: %s", error)
        return
    install()
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


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
