"""Numba's cache on disk, for kernels that must be there whatever the disk does.

Numba itself ends the program if a file of its cache is cut short, or cannot be written. Here every file carries its
SHA-256. A damaged one counts as absent, so the kernel is compiled and the file written again; what cannot be written
is done without. This is the only use of Numba's classes that its documentation does not describe.
"""

import contextlib
import functools
import hashlib
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
    UserProvidedCacheLocator,
)
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature

from apps.serving.progress import tell

log = logging.getLogger("podslice")

DIGEST = hashlib.sha256().digest_size


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `numba.njit(cache=True, **options)`."""

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        dispatcher._cache = _cache(function)
        return dispatcher

    return compiled


def callback(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `numba.cfunc(signature, cache=True)`: compiles at once."""

    def compiled(function: Callable[..., Any]) -> Any:
        made = CFunc(function, normalize_signature(signature), locals={}, options={})
        made._cache = _cache(function)  # type: ignore[attr-defined]  # numba's own, which `cache=True` sets
        made.compile()
        return made

    return compiled


def _cache(function: Callable[..., Any]) -> Any:
    try:
        return _Cache(function)
    except (OSError, RuntimeError) as error:  # no folder can be written
        _do_without(error)
        return NullCache()


class _Locator(UserProvidedCacheLocator):  # type: ignore[misc]  # numba has no types
    """The folder of the environment, even one that can only be read."""

    def ensure_cache_path(self) -> None:
        with contextlib.suppress(OSError):
            super().ensure_cache_path()


class _Impl(CompileResultCacheImpl):  # type: ignore[misc]  # numba has no types
    """Looks nowhere else if the environment names a folder: files beside the sources do not follow all of them."""

    if numba.config.CACHE_DIR:
        _locator_classes = (_Locator,)


class _Cache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """The compiled forms of one function."""

    _impl_class = _Impl

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            found = super().load_overload(sig, target_context)
        except Exception as error:  # whole, but not for this Numba
            log.warning("%s: its compiled kernel cannot be used (%s); compiling it again", self._name, error)
            found = None
        if found is None:
            _say_compiling()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _do_without(error)


class _Files(IndexDataCacheFile):  # type: ignore[misc]  # numba has no types
    """An index and its data files. Each ends with the digest of what Numba wrote, which `pickle` does not read."""

    def _dump(self, obj: Any) -> bytes:
        written: bytes = super()._dump(obj)
        return written + hashlib.sha256(written).digest()

    def _load_index(self) -> Any:
        if self._whole(self._index_path, index=True):
            with contextlib.suppress(OSError):
                return super()._load_index()
        return {}

    def _load_data(self, name: str) -> Any:
        return super()._load_data(name) if self._whole(self._data_path(name)) else None

    def _whole(self, path: str, index: bool = False) -> bool:
        """Whether a file can be read and is as it was written; one that is not is removed."""
        try:
            with open(path, "rb") as file:
                if index:  # the version, in a pickle of its own
                    pickle.load(file)
                content = file.read()
            if hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]:
                return True
            problem = "cut short, or changed"
        except (FileNotFoundError, NotADirectoryError):
            return False
        except Exception as error:
            problem = str(error) or type(error).__name__
        if path not in _said:
            _said.add(path)
            log.warning("%s is damaged (%s); its kernel is compiled again", path, problem)
        with contextlib.suppress(OSError):
            Path(path).unlink()
        return False


@functools.cache
def _say_compiling() -> None:
    """Names the stage of a first start that takes a minute and compiles none of the model's programs."""
    tell({"stage": "compiling kernels for this CPU, once"})


def _do_without(error: Exception) -> None:
    if "" not in _said:
        _said.add("")
        log.warning("CPU kernels are not kept on disk, so the next start compiles them again: %s", error)


_said: set[str] = set()
"""Files whose damage was logged; an empty name stands for those that cannot be written, all for the same reason."""
