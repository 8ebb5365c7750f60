"""Matrix products with a weight as it lies in memory: `[tokens, in]` times `[out, in]` -> `[tokens, out]` float32.

With few tokens a product takes as long as reading the weight, and memory is fastest when each core reads one address
after another. So a tile takes at most four of the weight's rows, which lie one after another, and prefetches the next
four in the order in which they lie. Reading eight rows side by side took two to three times as long on a Zen 4. With
many tokens, blocks of both matrices stay in a core's cache while they are multiplied.

Every sum adds up the same lanes in the same order whatever tile it is in, so a row's result does not depend on the
other rows, nor on how many there are.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from apps.llm.engine.cpu.kernel_cache import kernel
from apps.llm.engine.cpu.vectors import FLOAT, INTS, LANES, LINE, VECTOR, WORD, fma, has, prefetch_line, widen

PAIRS = INTS  # of bfloat16


def _number(value: int) -> ir.Constant:
    return ir.Constant(WORD, value)


def _add_pairs(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, total: ir.Value) -> ir.Value:
    """AVX-512's instruction for bfloat16: adds the products of two pairs to each lane of the total."""
    kind = ir.FunctionType(VECTOR, [VECTOR, PAIRS, PAIRS])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, (total, x, y))


def _sums(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """The sum of each vector's lanes: that of vector i of n (1 or 4) is in lane i * LANES / n.

    Adds lanes that are 8, 4, 2 and then 1 apart, of two vectors at once as long as there are two.
    """
    distance = LANES // 2
    while distance:
        half = len(vectors) // 2
        pairs = list(zip(vectors[:half], vectors[half:])) or [(vectors[0], vectors[0])]
        # Of each 2 * distance lanes of the result, the first half is a's and the second b's.
        low = [lane & ~distance | (LANES if lane & distance else 0) for lane in range(LANES)]
        high = [lane + distance for lane in low]
        vectors = [
            builder.fadd(*(builder.shuffle_vector(a, b, ir.Constant(INTS, lanes)) for lanes in (low, high)))
            for a, b in pairs
        ]
        distance //= 2
    return vectors[0]


def _tile(rows: int, outs: int) -> Any:
    """Make the product of `rows` rows of x and `outs` of the weight, whose sums all stay in registers.

    `tile(like_x, like_w, x, w, out, n, out_stride)`: a value of each type, addresses, columns of x and w, a multiple
    of a cache line's; columns of out.
    """

    @intrinsic
    def tile(typing_context, like_x, like_w, x, w, out, n, out_stride):
        pairs = like_x == types.uint16  # both are bfloat16, else x is float32
        x_size, w_size = like_x.bitwidth // 8, like_w.bitwidth // 8
        columns = LINE // w_size  # that a turn of the loop takes
        add = _add_pairs if pairs else fma

        def build(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            _, _, x, w, out, n, out_stride = args
            cells = [(r, o) for r in range(rows) for o in range(outs)]
            sums = {cell: cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [0.0] * LANES)) for cell in cells}

            def row(base: ir.Value, i: int, size: int) -> ir.Value:
                return builder.add(base, builder.mul(n, _number(i * size)))

            def pairs_at(address: ir.Value) -> ir.Value:
                return builder.load(builder.inttoptr(address, PAIRS.as_pointer()), align=1)

            xs, ws = [row(x, r, x_size) for r in range(rows)], [row(w, o, w_size) for o in range(outs)]
            following = row(w, outs, w_size)
            with cgutils.for_range(builder, builder.sdiv(n, _number(columns)), intp=WORD) as loop:
                in_x = builder.mul(loop.index, _number(columns * x_size))
                in_w = builder.mul(loop.index, _number(LINE))
                if outs > 1:  # with one, the hardware sees the order itself
                    lines = builder.add(following, builder.mul(in_w, _number(outs)))
                    for o in range(outs):
                        prefetch_line(builder, builder.add(lines, _number(o * LINE)))
                for lane in range(0, columns, 2 * LANES if pairs else LANES):
                    at = [builder.add(builder.add(address, in_w), _number(lane * w_size)) for address in ws]
                    weights = [pairs_at(address) if pairs else widen(builder, address, like_w) for address in at]
                    for r in range(rows):
                        address = builder.add(builder.add(xs[r], in_x), _number(lane * x_size))
                        own = pairs_at(address) if pairs else widen(builder, address, like_x)
                        for o in range(outs):
                            builder.store(add(builder, own, weights[o], builder.load(sums[r, o])), sums[r, o])
            places = [lane * LANES // outs for lane in range(outs)]
            several = ir.VectorType(FLOAT, outs)
            for r in range(rows):
                total = _sums(builder, [builder.load(sums[r, o]) for o in range(outs)])
                found = builder.shuffle_vector(total, total, ir.Constant(ir.VectorType(ir.IntType(32), outs), places))
                address = builder.add(out, builder.mul(out_stride, _number(4 * r)))
                builder.store(found, builder.inttoptr(address, several.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(like_x, like_w, *[types.int64] * 5), build

    return tile


MOST_COLUMNS = 4 if has("avx512f") else 1
"""Rows of the weight in a tile. Without AVX-512, registers have no room for the sums of more."""
_tile_6x4, _tile_4x4, _tile_4x1, _tile_2x1, _tile_1x1 = _tile(6, 4), _tile(4, 4), _tile(4, 1), _tile(2, 1), _tile(1, 1)

UNIT_BYTES = 1 << 17
"""Bytes of the weight that one unit of work takes: they stay in the core's cache, and are worth another thread."""
UNIT_X_BYTES, UNIT_ROWS = 1 << 18, 96
"""Bytes and rows of x that one unit takes at most, for the same reason."""


LINE_COLUMNS, MANY_ROWS = LINE // 4, 32
"""Columns of the result in a cache line; rows above which such are computed for each tile of x, to write whole lines.
With fewer rows, all of them are computed before the next of the weight, whose reading takes the time."""


@kernel()
def _unit_size(x_row, w_row):
    """Rows of x and of the weight that one unit takes, from the bytes of each: multiples of a tile's."""
    high = min(UNIT_ROWS, max(6, UNIT_X_BYTES // x_row // 6 * 6))
    return high, max(LINE_COLUMNS, UNIT_BYTES // w_row // LINE_COLUMNS * LINE_COLUMNS)


@kernel()
def units(rows, x, w):
    """Number of units of work of a product of so many rows of x with w."""
    high, wide = _unit_size(x.shape[1] * x.itemsize, w.shape[1] * w.itemsize)
    return -(-rows // high) * -(-len(w) // wide)


@kernel()
def product_unit(x, w, out, rows, unit):
    """One unit of `out[:rows] = x[:rows] @ w.T`, of contiguous arrays.

    Args:
        x: `[tokens, in]`, float32; or the bits of bfloat16, if w is such and the CPU has AVX-512's products of them.
        w: `[out, in]`: bfloat16 bits, float32 or int8, whole cache lines in a row.
        out: `[tokens, out]` float32.
        unit: which of `units`. Neighbours take the same part of w.
    """
    high, wide = _unit_size(x.shape[1] * x.itemsize, w.shape[1] * w.itemsize)
    blocks = -(-rows // high)
    start, first = unit % blocks * high, unit // blocks * wide
    stop, last = min(start + high, rows), min(first + wide, len(w))
    step = LINE_COLUMNS if stop - start > MANY_ROWS else MOST_COLUMNS
    for column in range(first, last, step):
        _product_columns(x, w, out, start, stop, column, min(column + step, last))


@kernel(inline="always")
def _product_columns(x, w, out, start, stop, first, last):
    """The product of some rows of x with some of the weight: each tile of x with all of them before the next."""
    n, total = x.shape[1], out.shape[1]
    like_x, like_w = x.dtype.type(0), w.dtype.type(0)
    x_row, w_row = n * x.itemsize, n * w.itemsize
    row = start
    while row < stop:
        left = stop - row
        rows = 6 if left >= 6 and left != 8 and MOST_COLUMNS == 4 else (4 if left >= 4 else (2 if left >= 2 else 1))
        a = np.int64(x.ctypes.data) + row * x_row
        column = first
        while column < last:
            b = np.int64(w.ctypes.data) + column * w_row
            to = np.int64(out.ctypes.data) + 4 * (row * total + column)
            if rows >= 4 and last - column >= 4 and MOST_COLUMNS == 4:
                if rows == 6:
                    _tile_6x4(like_x, like_w, a, b, to, n, total)
                else:
                    _tile_4x4(like_x, like_w, a, b, to, n, total)
                column += 4
            else:
                if rows == 6:
                    _tile_4x1(like_x, like_w, a, b, to, n, total)
                    _tile_2x1(like_x, like_w, a + 4 * x_row, b, to + 16 * total, n, total)
                elif rows == 4:
                    _tile_4x1(like_x, like_w, a, b, to, n, total)
                elif rows == 2:
                    _tile_2x1(like_x, like_w, a, b, to, n, total)
                else:
                    _tile_1x1(like_x, like_w, a, b, to, n, total)
                column += 1
        row += rows
