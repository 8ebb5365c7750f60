"""The arithmetic of CPU attention, compiled by Numba for the machine it runs on and cached on disk."""

import numpy as np

from apps.llm.engine.cpu import softmax
from apps.llm.engine.cpu.kernel_cache import kernel
from apps.llm.engine.cpu.panel import panel
from apps.llm.engine.cpu.softmax import mask, weigh
from apps.llm.engine.cpu.vectors import prefetch

FAST = {"reassoc", "contract", "nsz", "arcp"}  # vectorized sums
LOWEST = np.float32(softmax.LOWEST)
ROWS = 16  # query rows that are computed on a page together


@kernel(fastmath=FAST, inline="always")
def _softmax_row(scores, row, low, high, sums, top, total):
    """Turn a row's scores of one page into weights, 2 ** (score - maximum), and fold them into its running sums.

    Positions outside [low, high) are masked: their weight is 0.
    """
    count = scores.shape[1]
    address = np.int64(scores.ctypes.data) + 4 * row * count
    peak = max(top[row], mask(address, count, low, high))
    if peak > top[row]:
        shrink = np.float32(np.exp2(top[row] - peak)) if top[row] > LOWEST else np.float32(0)
        total[row] *= shrink
        for d in range(sums.shape[1]):
            sums[row, d] *= shrink
        top[row] = peak
    total[row] += weigh(address, count, peak)


@kernel()
def units(q_starts, seq, kv_heads, group):
    """Number of units of work of a sequence: per kv head, its tokens in groups whose query heads fill ROWS."""
    return kv_heads * -(-(q_starts[seq + 1] - q_starts[seq]) // max(1, ROWS // group))


@kernel()
def scratch(dim, page_size):
    """Working memory of `attend_unit`: queries, sums `[ROWS, dim]`, scores `[ROWS, page_size]`, top and total."""
    return (
        np.empty((ROWS, dim), np.float32),
        np.empty((ROWS, dim), np.float32),
        np.empty((ROWS, page_size), np.float32),
        np.empty(ROWS, np.float32),
        np.empty(ROWS, np.float32),
    )


@kernel(fastmath=FAST)
def attend_unit(q, k_pages, v_pages, q_starts, kv_lens, pages, window, cap, sinks, out, seq, unit, work):
    """Compute one unit: some tokens of a sequence, for one kv head, over the pages that they attend to.

    Args:
        q: `[T, kv_heads, group, head_dim]` float32, scaled so that scores are logarithms to base 2.
        window: sliding window in positions; 0: full attention.
        cap: soft cap on the scores; 0: none.
        sinks: `[kv_heads * group]` float32, each query head's score of a key without a value, as a logarithm to base 2.
        seq, unit: the sequence, and which of its `units`.
    """
    queries, sums, scores, top, total = work
    kv_heads, group = q.shape[1:3]
    page_size, dim = v_pages.shape[2:]
    tokens_at_once = max(1, ROWS // group)
    head = unit % kv_heads
    first = q_starts[seq] + unit // kv_heads * tokens_at_once
    last = min(first + tokens_at_once, q_starts[seq + 1])
    position = kv_lens[seq] - q_starts[seq + 1] + first  # of token `first`
    lowest = max(0, position - window + 1) if window else 0
    last_run = (position + last - 1 - first) // page_size
    for part in range(0, group, ROWS):  # a group of more than ROWS query heads is computed in parts
        heads = min(ROWS, group - part)
        rows = (last - first) * heads
        for row in range(rows):
            queries[row] = q[first + row // heads, head, part + row % heads]
        sums[:rows], top[:rows], total[:rows] = np.float32(0), LOWEST, np.float32(0)
        for run in range(lowest // page_size, last_run + 1):
            page = pages[seq, run]
            if run < last_run:
                prefetch(k_pages[pages[seq, run + 1], head])
                prefetch(v_pages[pages[seq, run + 1], head])
            scores[:rows] = np.float32(0)
            panel(queries, k_pages[page, head], scores, rows, dim)
            for row in range(rows):
                if cap > 0:
                    for j in range(page_size):
                        scores[row, j] = cap * np.float32(np.tanh(scores[row, j] / cap))
                at = position + row // heads - run * page_size  # the row's position relative to this page
                low = max(0, min(page_size, at - window + 1)) if window else 0
                high = max(low, min(page_size, at + 1))
                _softmax_row(scores, row, low, high, sums, top, total)
            # Without the rest of the last page: 0 times what its last owner left there, perhaps NaN, is not 0.
            seen = np.int64(min(page_size, position + last - first - run * page_size))
            panel(scores, v_pages[page, head], sums, rows, seen)
        for row in range(rows):
            target = out[first + row // heads, head, part + row % heads]
            sink = np.float32(np.exp2(min(sinks[head * group + part + row % heads] - top[row], np.float32(126))))
            inverse = np.float32(1) / (total[row] + sink)
            for d in range(dim):
                target[d] = sums[row, d] * inverse


@kernel()
def write(k_pages, v_pages, k, v, slot):
    """Write keys and values `[T, kv_heads, head_dim]` to their slots. Page 0 is for padding and never read."""
    tokens, heads, dim = k.shape
    page_size = v_pages.shape[2]
    for t in range(tokens):
        if slot[t] >= page_size:
            page, at = slot[t] // page_size, slot[t] % page_size
            for head in range(heads):
                for d in range(dim):
                    k_pages[page, head, d, at] = k[t, head, d]
                    v_pages[page, head, at, d] = v[t, head, d]
