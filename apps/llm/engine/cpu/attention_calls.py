"""Registers the attention's kernels with XLA, and shares a call's work among XLA's threads."""

from functools import partial

import numba
import numpy as np

from apps.llm.engine.cpu.attention_kernels import attend_unit, scratch, units, write
from apps.llm.engine.cpu.ffi import (
    FRAME_ARGS,
    FRAME_RESULTS,
    FRAME_WORDS,
    HANDLER,
    HELPER,
    add_handler,
    add_helper,
    answers_metadata,
    array3,
    array4,
    buffer,
    claim,
    compile_once,
    finish,
    finished_unit,
    frame_of,
    helper_of,
    pointer,
    release,
    share,
    vector,
    words,
)
from apps.llm.engine.cpu.kernel_cache import callback, kernel


@kernel()
def _on_write(address, like):
    frame = words(address, FRAME_WORDS)
    if not answers_metadata(frame):
        k_pages, v_pages = array4(frame, FRAME_RESULTS, 0, like), array4(frame, FRAME_RESULTS, 1, like)
        write(k_pages, v_pages, array3(frame, 2, like), array3(frame, 3, like), vector(frame, 4, np.int32(0)))
    return 0


@kernel()
def _work(state, like):
    """Claim and compute units of a call until none are left."""
    unit = claim(state)
    if unit < 0:
        return
    frame = frame_of(state)
    real, whole = np.float32(0), np.int32(0)
    q, out = array4(frame, FRAME_ARGS, 0, real), array4(frame, FRAME_RESULTS, 0, real)
    k_pages, v_pages = array4(frame, FRAME_ARGS, 1, like), array4(frame, FRAME_ARGS, 2, like)
    q_starts, kv_lens = vector(frame, 3, whole), vector(frame, 4, whole)
    data, dims = buffer(frame, FRAME_ARGS, 5)
    pages = numba.carray(pointer(data, whole), (len(kv_lens), words(dims, 2)[1]))
    window, cap, sinks = vector(frame, 6, whole)[0], vector(frame, 7, real)[0], vector(frame, 8, real)
    room = scratch(v_pages.shape[3], v_pages.shape[2])
    seq, before = 0, 0  # units of the sequences before `seq`
    while unit >= 0:
        mine = units(q_starts, seq, q.shape[1], q.shape[2])
        while unit >= before + mine:
            seq, before = seq + 1, before + mine
            mine = units(q_starts, seq, q.shape[1], q.shape[2])
        attend_unit(q, k_pages, v_pages, q_starts, kv_lens, pages, window, cap, sinks, out, seq, unit - before, room)
        finished_unit(state)
        unit = claim(state)


@kernel()
def _on_attend(address, like):
    frame = words(address, FRAME_WORDS)
    if answers_metadata(frame):
        return 0
    _, q_dims = buffer(frame, FRAME_ARGS, 0)
    kv_heads, group = words(q_dims, 4)[1], words(q_dims, 4)[2]
    q_starts = vector(frame, 3, np.int32(0))
    total = 0
    for seq in range(len(q_starts) - 1):
        total += units(q_starts, seq, kv_heads, group)
    state = share(address, total, helper_of("attend", like, like))
    _work(state, like)
    finish(state)
    return 0


@kernel()
def _on_help(state, like):
    _work(state, like)
    release(state)


ZEROS = {"bf16": np.uint16(0), "f32": np.float32(0), "int8": np.int8(0)}
"""A value of each type that a cache can have, by the type's name in the handlers' names."""


def register(kind: str) -> None:
    """Compile the kernels for a type of cache (or load them from Numba's cache) and register them with XLA."""
    compile_once(f"attention, {kind}", lambda: _register(kind))


def _register(kind: str) -> None:
    like = ZEROS[kind]

    @callback(HELPER)
    def helper(state):
        _on_help(state, like)

    add_helper("attend", like, like, helper)

    @callback(HANDLER)
    def write(address):
        return _on_write(address, like)

    @callback(HANDLER)
    def attend(address):
        return _on_attend(address, like)

    add_handler(f"podslice_write_{kind}", write)
    add_handler(f"podslice_attend_{kind}", attend)


TARGETS = {f"podslice_{call}_{kind}": partial(register, kind) for call in ("write", "attend") for kind in ZEROS}
"""What registers each custom call's kernels."""
