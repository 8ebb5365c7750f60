"""XLA compilation, for every application: the persistent cache, and a count of compiles."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

_this_thread = threading.local()


def use_compile_cache(folder: str | None) -> None:
    """Keep compiled programs in a folder, whatever their size and however quickly they compiled. None: nowhere."""
    if folder is None:
        return
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(path / "numba"))  # the CPU attention's kernels
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
    """What this thread compiles meanwhile counts nowhere: who is ready must not count what another needs to get so."""
    _this_thread.warms_up = True
    try:
        yield
    finally:
        _this_thread.warms_up = False
