"""XLA's C foreign function interface in Numba: what a handler needs to read its buffers and use XLA's threads.

XLA passes buffers through a struct of pointers (xla/ffi/api/c_api.h), read here word by word, so that no C compiler
is needed. The word offsets are those of the versions in `READ`. The handlers report the first of them to XLA, and
`usable` checks that the installed XLA has one of them: with another one, nothing may be registered or called.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import jax
import llvmlite.binding
import numba
import numpy as np
from filelock import FileLock
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from apps.llm.engine.cpu.kernel_cache import kernel

log = logging.getLogger("podslice")

READ = (0, 3), (0, 4), (0, 5)
"""XLA_FFI_API_MAJOR and XLA_FFI_API_MINOR: JAX 0.10's; 0.11's and 0.12's, which append to structs."""
VERSION_WORD = np.int64(READ[0][0] | READ[0][1] << 32)

HANDLER, HELPER = types.int64(types.int64), types.void(types.int64)
"""Types of a handler, which takes a call frame's address, and of a helper, which takes that of a call's state."""

# Words (8 bytes) of XLA_FFI_CallFrame, XLA_FFI_Buffer, XLA_FFI_Metadata_Extension and XLA_FFI_Metadata, XLA_FFI_Api.
FRAME_EXTENSION, FRAME_API, FRAME_CONTEXT, FRAME_ARGS, FRAME_RESULTS, FRAME_WORDS = 1, 2, 3, 9, 14, 18
BUFFER_DATA, BUFFER_DIMS = 3, 5
EXTENSION_METADATA, METADATA_VERSION, METADATA_TRAITS = 3, 3, 4
API_SCHEDULE, API_NUM_THREADS = 17, 18

# Words of a call's shared state, from which its threads claim work. Helpers may start after the call has returned, so
# the last holder frees it, and a helper reads the call's frame only after it has claimed a unit.
NEXT, DONE, HOLDERS, FRAME, TOTAL, STATE_WORDS = 0, 1, 2, 3, 4, 5

LONGEST_WAIT_S = 120
"""How long to wait for another process that compiles the same kernels, which takes ten seconds on an idle core."""

malloc = types.ExternalFunction("malloc", types.int64(types.int64))
free = types.ExternalFunction("free", types.void(types.int64))


# -- memory, calls and atomics ------------------------------------------------------------------------------------


@intrinsic
def pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """An integer address as a pointer to values of the second argument's type."""
    result = types.CPointer(like)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return result(types.int64, like), build


@intrinsic
def _atomic_add(typing_context: Any, address: Any, value: Any) -> Any:
    """Atomically add to the word at an address; returns the old value."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", word, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), build


@intrinsic
def _call(typing_context: Any, function: Any, argument: Any) -> Any:
    """Call the C function at an address; it takes a pointer and returns one."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.call(builder.inttoptr(args[0], ir.FunctionType(word, [word]).as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), build


@numba.njit(inline="always")
def words(address, count):
    return numba.carray(pointer(address, np.int64(0)), count)


# -- buffers ------------------------------------------------------------------------------------------------------


@numba.njit(inline="always")
def buffer(frame, table, i):
    """Addresses of the data and of the dimensions of the i-th argument (or result)."""
    found = words(words(frame[table], i + 1)[i], 6)
    return found[BUFFER_DATA], found[BUFFER_DIMS]


@numba.njit(inline="always")
def vector(frame, i, like):
    """Argument i as a one-dimensional array."""
    data, dims = buffer(frame, FRAME_ARGS, i)
    return numba.carray(pointer(data, like), words(dims, 1)[0])


@numba.njit(inline="always")
def array2(frame, table, i, like):
    data, dims = buffer(frame, table, i)
    d = words(dims, 2)
    return numba.carray(pointer(data, like), (d[0], d[1]))


@numba.njit(inline="always")
def array3(frame, i, like):
    data, dims = buffer(frame, FRAME_ARGS, i)
    d = words(dims, 3)
    return numba.carray(pointer(data, like), (d[0], d[1], d[2]))


@numba.njit(inline="always")
def array4(frame, table, i, like):
    data, dims = buffer(frame, table, i)
    d = words(dims, 4)
    return numba.carray(pointer(data, like), (d[0], d[1], d[2], d[3]))


@numba.njit(inline="always")
def answers_metadata(frame):
    """Answer XLA's query for the handler's version. False if the call is not such a query."""
    if frame[FRAME_EXTENSION] == 0:
        return False
    metadata = words(words(frame[FRAME_EXTENSION], 4)[EXTENSION_METADATA], 5)
    metadata[METADATA_VERSION] = VERSION_WORD
    metadata[METADATA_TRAITS] = 0
    return True


# -- a call's work, shared by XLA's threads -------------------------------------------------------------------------


def _helper_name(call: str, *elements: types.Type) -> str:
    return "_".join(["podslice", call, "helper", *map(str, elements)])


@intrinsic(prefer_literal=True)
def helper_of(typing_context: Any, call: Any, like: Any, other: Any) -> Any:
    """Address of a call's helper for two types of buffers. By name, so that a handler cached on disk can find it."""
    name = _helper_name(call.literal_value, like, other)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word])
        return builder.ptrtoint(cgutils.get_or_insert_function(builder.module, kind, name), word)

    return types.int64(call, like, other), build


@kernel()
def share(address, total, helper):
    """Let XLA's other threads help with a call of so many units; returns the call's state. Then work, and `finish`."""
    frame = words(address, FRAME_WORDS)
    memory = malloc(8 * STATE_WORDS)
    state = words(memory, STATE_WORDS)
    state[NEXT], state[DONE], state[HOLDERS], state[FRAME], state[TOTAL] = 0, 0, 1, address, total
    if total < 2:
        return memory
    api = words(frame[FRAME_API], 19)
    threads = np.ones(1, np.int64)
    ask = np.array([32, 0, frame[FRAME_CONTEXT], threads.ctypes.data], np.int64)  # ..._ThreadPool_NumThreads_Args
    error = _call(api[API_NUM_THREADS], np.int64(ask.ctypes.data))
    for _ in range(0 if error != 0 else min(threads[0], total) - 1):
        _atomic_add(memory + 8 * HOLDERS, 1)
        order = np.array([40, 0, frame[FRAME_CONTEXT], helper, memory], np.int64)  # ..._Schedule_Args
        if _call(api[API_SCHEDULE], np.int64(order.ctypes.data)) != 0:
            _atomic_add(memory + 8 * HOLDERS, -1)
    return memory


@kernel()
def claim(memory):
    """The next unit of a call that nobody has claimed; -1 if there is none."""
    unit = _atomic_add(memory + 8 * NEXT, 1)
    return unit if unit < words(memory, STATE_WORDS)[TOTAL] else -1


@kernel()
def frame_of(memory):
    """The call's frame, to be read only by who has claimed a unit and not finished it."""
    return words(words(memory, STATE_WORDS)[FRAME], FRAME_WORDS)


@kernel()
def finished_unit(memory):
    _atomic_add(memory + 8 * DONE, 1)


@kernel()
def finish(memory):
    """Wait until all units are computed, and let go of the state."""
    total = words(memory, STATE_WORDS)[TOTAL]
    while _atomic_add(memory + 8 * DONE, 0) < total:
        pass  # other threads are finishing the last units: microseconds
    release(memory)


@kernel()
def release(memory):
    if _atomic_add(memory + 8 * HOLDERS, -1) == 1:
        free(memory)


# -- registration ---------------------------------------------------------------------------------------------------


@cache
def usable() -> bool:
    """Whether the installed XLA has a version of the interface that the handlers can read.

    Reads it from jaxlib's header, because a handler that XLA rejects breaks the whole CPU backend.
    """
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    except OSError:
        found = {}
    version = tuple(int(found[name]) for name in ("MAJOR", "MINOR")) if len(found) == 2 else None
    if version in READ:
        return True
    log.warning(
        "CPU kernels are off and plain XLA computes instead: they can read versions %s of XLA's foreign function "
        "interface, and jaxlib has %s",
        " and ".join(".".join(map(str, known)) for known in READ),
        ".".join(map(str, version)) if version else "none that can be found",
    )
    return False


def add_helper(call: str, like: Any, other: Any, helper: Any) -> None:
    """Make a compiled helper known under the name that `helper_of` uses. Before the handlers are compiled."""
    llvmlite.binding.add_symbol(_helper_name(call, numba.typeof(like), numba.typeof(other)), helper.address)
    _alive.append(helper)


def add_handler(name: str, handler: Any) -> None:
    """Register a compiled handler as the target of `jax.ffi.ffi_call(name)`."""
    _alive.append(handler)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler.ctypes), platform="cpu")


def compile_once(what: str, register: Callable[[], None]) -> None:
    """Run a function that compiles and registers kernels, or loads them from disk; for each `what` once.

    Threads that load prepared programs ask for the kernels of these, while the engine asks for its own.
    """
    with _one_thread_at_a_time:
        if what in _registered:
            return
        began = time.monotonic()
        with _one_process_at_a_time():
            register()
        _registered.add(what)
        log.info("CPU kernels for %s ready in %.1f s", what, time.monotonic() - began)


@contextmanager
def _one_process_at_a_time() -> Iterator[None]:
    """Let one process of this machine compile while the others wait and then find the kernels on disk.

    Otherwise all would compile at once: sixteen emulated hosts on two cores took five minutes.
    """
    lock = None
    if folder := numba.config.CACHE_DIR:
        lock = FileLock(Path(folder, "podslice-kernels.lock"), timeout=LONGEST_WAIT_S)
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (OSError, NotImplementedError) as error:  # a file system without locks, or the holder hangs
            log.warning("%s cannot be locked (%s); other processes may compile the same kernels too", folder, error)
            lock = None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


_alive: list[Any] = []  # compiled functions that XLA holds by address
_registered: set[str] = set()  # XLA takes each name once
_one_thread_at_a_time = threading.RLock()
