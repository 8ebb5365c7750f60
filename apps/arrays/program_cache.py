"""JAX's persistent compilation cache: entries that may be damaged, in a folder whose disk may be full, or in a bucket.

JAX survives an entry that it cannot read, but never writes it again, and leaves half an entry behind on a full disk.
Here an entry is a digest and the program, and appears at once or not at all; one that is damaged is removed, and the
program compiled and written again. The classes follow JAX's private `CacheInterface`, and `use_compile_cache` is the
only place that puts them there.

A program runs where it is loaded, and more than this machine may write to a bucket: there the digest has the key that
seals prepared programs.
"""

import contextlib
import hashlib
import hmac
import json
import logging
import os
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from jax._src import cache_key, compilation_cache
from jax._src.compilation_cache_interface import CacheInterface

from apps.arrays.stored_programs import seal
from apps.arrays.stored_programs.fingerprint import machine
from apps.arrays.stored_programs.seal import KEY_VARIABLE, MAKE_A_KEY, Unusable

log = logging.getLogger("podslice")

ENTRY, PARTIAL = "-checked-cache", ".partial"
"""Ends of an entry's name, and of one that is being written, or whose writer was killed."""
ABANDONED_S = 3600
"""A partial entry older than this has no writer any more."""
DIGEST = hashlib.sha256().digest_size
WAIT_MS = 20 * 60 * 1000
"""For the host of a slice that compiles for all."""
AGAIN = "so the next start compiles them again"


def use_compile_cache(location: str | None, hosts: int = 1) -> None:
    """Cache all compiled programs, even small and quickly compiled ones. None: no cache.

    A place that cannot be used is logged, and done without.

    Args:
        location: a folder, or the URL of one that all hosts share, such as gs://bucket/programs.
        hosts: of the slice. With a cache that they share, its first process compiles for all; what each has on its own
            disk, another may lack, and would wait for it in vain.
    """
    if location is None:
        return
    if "://" in location:
        if not _is_sealed(location):
            return
        jax.config.update("jax_share_binary_between_hosts", hosts > 1)
        jax.config.update("jax_share_binary_between_hosts_timeout_ms", WAIT_MS)
    else:
        location = os.path.expanduser(location)
        os.environ.setdefault("NUMBA_CACHE_DIR", os.path.join(location, "numba"))  # the CPU's kernels
        try:
            os.makedirs(location, exist_ok=True)
        except OSError as error:
            log.warning("compile_cache: compiled programs are not kept, %s: %s", AGAIN, error)
            return
    _install()
    jax.config.update("jax_compilation_cache_dir", location)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _is_sealed(location: str) -> bool:
    """Whether there is a key for the programs of a bucket; logs why not."""
    try:
        if seal.key():
            return True
        why = f"{KEY_VARIABLE} is not set: {MAKE_A_KEY}"
    except Unusable as error:
        why = str(error)
    log.warning("compile_cache: %s is not used, %s: %s", location, AGAIN, why)
    return False


class CheckedCache(CacheInterface):
    """Entries with their digests."""

    DAMAGE: ClassVar[str]
    """What is wrong where the digest is another one."""

    def __init__(self, location: str):
        self.location, self._path = location, Path(location)  # JAX names the second in a message
        self._told: set[str] = set()

    def get(self, key: str) -> bytes | None:
        """A program, or None: it is not there, cannot be read now, or its entry was damaged and is gone now."""
        name = f"{key}{ENTRY}"
        try:
            content = self._read(name)
        except Exception as error:  # of whatever library reads a bucket
            self._tell(name, f"{self.location}/{name} cannot be read ({error}); its program is compiled again")
            return None
        if content is None:
            return None
        program = content[DIGEST:]
        if hmac.compare_digest(self._digest(name, program), content[:DIGEST]):
            return program
        self._tell(name, f"{self.location}/{name} is damaged ({self.DAMAGE}); its program is compiled again")
        with contextlib.suppress(Exception):
            self._remove(name)
        return None

    def put(self, key: str, value: bytes) -> None:
        """Write a program; JAX calls this when it has compiled one, so one that is there could not be used."""
        name = f"{key}{ENTRY}"
        try:
            self._write(name, self._digest(name, value) + value)
        except Exception as error:
            self._tell("", f"compiled programs are not kept, {AGAIN}: {error}")

    @abstractmethod
    def _digest(self, name: str, program: bytes) -> bytes: ...

    @abstractmethod
    def _read(self, name: str) -> bytes | None:
        """None: there is no such entry."""

    @abstractmethod
    def _write(self, name: str, content: bytes) -> None:
        """All of it, or nothing."""

    @abstractmethod
    def _remove(self, name: str) -> None: ...

    def _tell(self, what: str, message: str) -> None:
        """Log once for each entry; an empty name stands for those that cannot be written."""
        if what not in self._told:
            self._told.add(what)
            log.warning("%s", message)


class ProgramCache(CheckedCache):
    """The entries of a local folder.

    Raises:
        OSError: the folder is not there and cannot be made.
    """

    DAMAGE = "it is cut short, or changed"

    def __init__(self, location: str):
        super().__init__(location)
        self._path.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            for left in self._path.glob(f"*{PARTIAL}"):
                if time.time() - left.stat().st_mtime > ABANDONED_S:
                    left.unlink()

    def _digest(self, name: str, program: bytes) -> bytes:
        return hashlib.sha256(program).digest()

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, name: str, content: bytes) -> None:
        path = self._path / name
        partial = path.with_name(f"{name}.{uuid.uuid4().hex}{PARTIAL}")
        try:
            partial.write_bytes(content)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def _remove(self, name: str) -> None:
        (self._path / name).unlink()


class SharedPrograms(CheckedCache):
    """The entries below a URL of fsspec's, whose objects appear whole, as a bucket's do."""

    DAMAGE = f"it was sealed with another {KEY_VARIABLE}, cut short, or changed"

    def __init__(self, url: str):
        import fsspec

        super().__init__(url)
        self._fs, self._root = fsspec.core.url_to_fs(url)
        self._key = seal.key() or b""  # as `use_compile_cache` has seen to

    def _digest(self, name: str, program: bytes) -> bytes:
        return hmac.digest(self._key, f"podslice compiled program {name}\n".encode() + program, "sha256")

    def _read(self, name: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError:
            return None

    def _write(self, name: str, content: bytes) -> None:
        self._fs.makedirs(self._root, exist_ok=True)
        self._fs.pipe_file(f"{self._root}/{name}", content)

    def _remove(self, name: str) -> None:
        self._fs.rm_file(f"{self._root}/{name}")


def _install() -> None:
    """Have JAX keep its entries so, from its next use of the cache on. With a maximum size it keeps its own class,
    which evicts."""
    own = compilation_cache.get_file_cache

    def cache(path: str) -> tuple[CacheInterface, str] | None:
        if jax.config.values["jax_compilation_cache_max_size"] != -1:
            return own(path)
        return (SharedPrograms if "://" in path else ProgramCache)(path), path

    if own.__module__ == compilation_cache.__name__:
        compilation_cache.get_file_cache = cache
        cache_key._hash_accelerator_config = partial(_hash_devices, cache_key._hash_accelerator_config)


def _hash_devices(own: Callable[[Any, np.ndarray], None], hashed: Any, devices: np.ndarray) -> None:
    """JAX's `own`, but for CPU devices of several processes, an emulated slice: the fingerprint that XLA gives those is
    another one in each process, of which the first alone writes what it compiled."""
    every = list(devices.flat)
    if every[0].platform == "cpu" and len({each.process_index for each in every}) > 1:
        hashed.update(json.dumps(machine(every), sort_keys=True).encode())
    else:
        own(hashed, devices)
