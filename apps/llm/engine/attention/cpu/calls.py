"""Registers the CPU attention kernels with XLA, and runs them on XLA's threads.

XLA passes buffers through its C foreign function interface (xla/ffi/api/c_api.h): a struct of pointers, read here
word by word, so that no C compiler is needed. Numba compiles the handlers and caches them on disk.

The word offsets belong to one version of that interface, `WRITTEN_FOR`. The handlers report it to XLA, and `usable`
checks that the installed XLA has that version: with another one, nothing here may be registered or called.
"""

import logging
import re
import time
from collections.abc import Iterator
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

from apps.llm.engine.attention.cpu.kernels import attend_unit, scratch, units, write

log = logging.getLogger("podslice")

WRITTEN_FOR = (0, 3)
"""XLA_FFI_API_MAJOR and XLA_FFI_API_MINOR."""
VERSION_WORD = np.int64(WRITTEN_FOR[0] | WRITTEN_FOR[1] << 32)

# Words (8 bytes) of XLA_FFI_CallFrame, XLA_FFI_Buffer, XLA_FFI_Metadata_Extension and XLA_FFI_Metadata, XLA_FFI_Api.
FRAME_EXTENSION, FRAME_API, FRAME_CONTEXT, FRAME_ARGS, FRAME_RESULTS = 1, 2, 3, 9, 14
BUFFER_DATA, BUFFER_DIMS = 3, 5
EXTENSION_METADATA, METADATA_VERSION, METADATA_TRAITS = 3, 3, 4
API_SCHEDULE, API_NUM_THREADS = 17, 18

# Words of a call's shared state, from which its threads claim work. Helpers may start after the call has returned, so
# the last holder frees it, and a helper reads the call's frame only after it has claimed a unit.
NEXT, DONE, HOLDERS, FRAME, TOTAL, STATE_WORDS = 0, 1, 2, 3, 4, 5

malloc = types.ExternalFunction("malloc", types.int64(types.int64))
free = types.ExternalFunction("free", types.void(types.int64))


@intrinsic
def _pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """An integer address as a pointer to values of the second argument's type."""
    result = types.CPointer(like)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return result(types.int64, like), build


@intrinsic
def _atomic_add(typing_context: Any, address: Any, value: Any) -> Any:
    """Atomically add to the word at an address; returns the old value."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), build


@intrinsic
def _call(typing_context: Any, function: Any, argument: Any) -> Any:
    """Call the C function at an address; it takes a pointer and returns one."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.call(builder.inttoptr(args[0], ir.FunctionType(word, [word]).as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), build


def _helper_name(element: types.Type) -> str:
    return f"podslice_attend_helper_{element}"


@intrinsic
def _helper(typing_context: Any, like: Any) -> Any:
    """Address of the helper task for a cache's type. By name, so that a handler cached on disk can find it."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word])
        function = cgutils.get_or_insert_function(builder.module, kind, _helper_name(like))
        return builder.ptrtoint(function, word)

    return types.int64(like), build


@numba.njit(inline="always")
def _words(address, count):
    return numba.carray(_pointer(address, np.int64(0)), count)


@numba.njit(inline="always")
def _buffer(frame, table, i):
    """Addresses of the i-th argument's (or result's) data and of its dimensions."""
    buffer = _words(_words(frame[table], i + 1)[i], 6)
    return buffer[BUFFER_DATA], buffer[BUFFER_DIMS]


@numba.njit(inline="always")
def _vector(frame, i, like):
    """Argument i as a one-dimensional array."""
    data, dims = _buffer(frame, FRAME_ARGS, i)
    return numba.carray(_pointer(data, like), _words(dims, 1)[0])


@numba.njit(inline="always")
def _array4(frame, table, i, like):
    data, dims = _buffer(frame, table, i)
    d = _words(dims, 4)
    return numba.carray(_pointer(data, like), (d[0], d[1], d[2], d[3]))


@numba.njit(inline="always")
def _array3(frame, i, like):
    data, dims = _buffer(frame, FRAME_ARGS, i)
    d = _words(dims, 3)
    return numba.carray(_pointer(data, like), (d[0], d[1], d[2]))


@numba.njit(inline="always")
def _answers_metadata(frame):
    """Answer XLA's query for the handler's version. False if the call is not such a query."""
    if frame[FRAME_EXTENSION] == 0:
        return False
    metadata = _words(_words(frame[FRAME_EXTENSION], 4)[EXTENSION_METADATA], 5)
    metadata[METADATA_VERSION] = VERSION_WORD
    metadata[METADATA_TRAITS] = 0
    return True


@numba.njit(cache=True)
def _on_write(address, like):
    frame = _words(address, 18)
    if not _answers_metadata(frame):
        k_pages, v_pages = _array4(frame, FRAME_RESULTS, 0, like), _array4(frame, FRAME_RESULTS, 1, like)
        write(k_pages, v_pages, _array3(frame, 2, like), _array3(frame, 3, like), _vector(frame, 4, np.int32(0)))
    return 0


@numba.njit(cache=True)
def _work(state, like):
    """Claim and compute units of a call until none are left."""
    unit = _atomic_add(state + 8 * NEXT, 1)
    total = _words(state, STATE_WORDS)[TOTAL]
    if unit >= total:
        return
    frame = _words(_words(state, STATE_WORDS)[FRAME], 18)
    real, whole = np.float32(0), np.int32(0)
    q, out = _array4(frame, FRAME_ARGS, 0, real), _array4(frame, FRAME_RESULTS, 0, real)
    k_pages, v_pages = _array4(frame, FRAME_ARGS, 1, like), _array4(frame, FRAME_ARGS, 2, like)
    q_starts, kv_lens = _vector(frame, 3, whole), _vector(frame, 4, whole)
    data, dims = _buffer(frame, FRAME_ARGS, 5)
    pages = numba.carray(_pointer(data, whole), (len(kv_lens), _words(dims, 2)[1]))
    window, cap, sinks = _vector(frame, 6, whole)[0], _vector(frame, 7, real)[0], _vector(frame, 8, real)
    room = scratch(v_pages.shape[3], v_pages.shape[2])
    seq, before = 0, 0  # units of the sequences before `seq`
    while unit < total:
        mine = units(q_starts, seq, q.shape[1], q.shape[2])
        while unit >= before + mine:
            seq, before = seq + 1, before + mine
            mine = units(q_starts, seq, q.shape[1], q.shape[2])
        attend_unit(q, k_pages, v_pages, q_starts, kv_lens, pages, window, cap, sinks, out, seq, unit - before, room)
        _atomic_add(state + 8 * DONE, 1)
        unit = _atomic_add(state + 8 * NEXT, 1)


@numba.njit(cache=True)
def _release(state):
    if _atomic_add(state + 8 * HOLDERS, -1) == 1:
        free(state)


@numba.njit(cache=True)
def _on_attend(address, like):
    frame = _words(address, 18)
    if _answers_metadata(frame):
        return 0
    api = _words(frame[FRAME_API], 19)
    _, q_dims = _buffer(frame, FRAME_ARGS, 0)
    kv_heads, group = _words(q_dims, 4)[1], _words(q_dims, 4)[2]
    q_starts = _vector(frame, 3, np.int32(0))
    total = 0
    for seq in range(len(q_starts) - 1):
        total += units(q_starts, seq, kv_heads, group)
    threads = np.ones(1, np.int64)
    ask = np.array([32, 0, frame[FRAME_CONTEXT], threads.ctypes.data], np.int64)  # ..._ThreadPool_NumThreads_Args
    error = _call(api[API_NUM_THREADS], np.int64(ask.ctypes.data))
    helpers = 0 if error != 0 else min(threads[0], total) - 1
    memory = malloc(8 * STATE_WORDS)
    state = _words(memory, STATE_WORDS)
    state[NEXT], state[DONE], state[HOLDERS], state[FRAME], state[TOTAL] = 0, 0, 1, address, total
    for _ in range(helpers):
        _atomic_add(memory + 8 * HOLDERS, 1)
        order = np.array([40, 0, frame[FRAME_CONTEXT], _helper(like), memory], np.int64)  # ..._Schedule_Args
        if _call(api[API_SCHEDULE], np.int64(order.ctypes.data)) != 0:
            _atomic_add(memory + 8 * HOLDERS, -1)
    _work(memory, like)
    while _atomic_add(memory + 8 * DONE, 0) < total:
        pass  # other threads are finishing the last units: microseconds
    _release(memory)
    return 0


@numba.njit(cache=True)
def _on_help(state, like):
    _work(state, like)
    _release(state)


LONGEST_WAIT_S = 120
"""How long to wait for another process that compiles the same kernels, which takes ten seconds on an idle core."""
ZEROS = {"bf16": np.uint16(0), "f32": np.float32(0), "int8": np.int8(0)}
"""A value of each type that a cache can have, by the type's name in the handlers' names."""


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


@cache
def usable() -> bool:
    """Whether the installed XLA has the version of the interface that the handlers are written for.

    Reads it from jaxlib's header, because a handler that XLA rejects breaks the whole CPU backend.
    """
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    except OSError:
        found = {}
    version = tuple(int(found[name]) for name in ("MAJOR", "MINOR")) if len(found) == 2 else None
    if version == WRITTEN_FOR:
        return True
    log.warning(
        "CPU attention kernels are off and plain XLA computes attention: they are written for version %s of XLA's "
        "foreign function interface, and jaxlib has %s",
        ".".join(map(str, WRITTEN_FOR)),
        ".".join(map(str, version)) if version else "none that can be found",
    )
    return False


@cache
def register(kind: str) -> None:
    """Compile the kernels for a type of cache (or load them from Numba's cache) and register them with XLA."""
    with _one_process_at_a_time():
        _register(kind)


def _register(kind: str) -> None:
    began = time.monotonic()
    like = ZEROS[kind]
    handler, task = types.int64(types.int64), types.void(types.int64)

    @numba.cfunc(task, cache=True)
    def helper(state):
        _on_help(state, like)

    # Before the handlers, which look their helper up by this name.
    llvmlite.binding.add_symbol(_helper_name(numba.typeof(like)), helper.address)

    @numba.cfunc(handler, cache=True)
    def write(address):
        return _on_write(address, like)

    @numba.cfunc(handler, cache=True)
    def attend(address):
        return _on_attend(address, like)

    _alive.extend((helper, write, attend))
    jax.ffi.register_ffi_target(f"podslice_write_{kind}", jax.ffi.pycapsule(write.ctypes), platform="cpu")
    jax.ffi.register_ffi_target(f"podslice_attend_{kind}", jax.ffi.pycapsule(attend.ctypes), platform="cpu")
    log.info("CPU attention kernels ready in %.1f s", time.monotonic() - began)


_alive: list[Any] = []  # compiled functions that XLA holds by address
