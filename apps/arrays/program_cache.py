"""JAX's persistent compilation cache, in a folder whose entries may be damaged and whose disk may be full.

JAX survives an entry that it cannot read, but never writes it again, and leaves half an entry behind on a full disk.
Here an entry is its SHA-256 and the program, and appears at once or not at all; one that is damaged is removed, and
the program compiled and written again. The class follows JAX's private `CacheInterface`, and `use_compile_cache` is
the only place that puts it there.
"""

import contextlib
import hashlib
import logging
import os
import time
import uuid
from pathlib import Path

import jax
from jax._src import compilation_cache
from jax._src.compilation_cache_interface import CacheInterface

log = logging.getLogger("podslice")

ENTRY, PARTIAL = "-checked-cache", ".partial"
"""Ends of an entry's name, and of one that is being written, or whose writer was killed."""
ABANDONED_S = 3600
"""A partial entry older than this has no writer any more."""
DIGEST = hashlib.sha256().digest_size


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
    _install()
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class ProgramCache(CacheInterface):
    """The entries of a local folder.

    Raises:
        OSError: the folder is not there and cannot be made.
    """

    def __init__(self, folder: str):
        self._path = Path(folder)  # JAX names it in a message
        self._path.mkdir(parents=True, exist_ok=True)
        self._told: set[str] = set()
        with contextlib.suppress(OSError):
            for left in self._path.glob(f"*{PARTIAL}"):
                if time.time() - left.stat().st_mtime > ABANDONED_S:
                    left.unlink()

    def get(self, key: str) -> bytes | None:
        """A program, or None: it is not there, or its entry was damaged and is gone now."""
        path = self._entry(key)
        try:
            content = path.read_bytes()
            digest, program = content[:DIGEST], content[DIGEST:]
            if hashlib.sha256(program).digest() == digest:
                return program
            problem = "it is cut short, or changed"
        except FileNotFoundError:
            return None
        except OSError as error:
            problem = str(error)
        self._tell(path.name, f"{path} is damaged ({problem}); its program is compiled again")
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Write a program; JAX calls this when it has compiled one, so one that is there could not be used."""
        path = self._entry(key)
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PARTIAL}")
        try:
            try:
                partial.write_bytes(hashlib.sha256(value).digest() + value)
                os.replace(partial, path)
            except OSError:
                partial.unlink(missing_ok=True)
                raise
        except OSError as error:
            self._tell("", f"compiled programs are not kept, so the next start compiles them again: {error}")

    def _entry(self, key: str) -> Path:
        return self._path / f"{key}{ENTRY}"

    def _tell(self, what: str, message: str) -> None:
        """Log once for each entry; an empty name stands for those that cannot be written."""
        if what not in self._told:
            self._told.add(what)
            log.warning("%s", message)


def _install() -> None:
    """Have JAX keep its entries so, from its next use of the cache on. With a maximum size it keeps its own class,
    which evicts."""
    own = compilation_cache.get_file_cache

    def cache(path: str) -> tuple[CacheInterface, str] | None:
        if jax.config.values["jax_compilation_cache_max_size"] != -1:
            return own(path)
        return ProgramCache(path), path

    if own.__module__ == compilation_cache.__name__:
        compilation_cache.get_file_cache = cache
