"""A small matrix product in vector registers: the inner loop of the CPU attention's kernels.

`out[rows, cols] += a[rows, n] @ b[n, cols]`, with `a` and `out` in float32 and `b` in the cache's type (bfloat16
bits, float32 or int8), widened as it is loaded. LLVM's loop vectorizer would load and store every partial sum.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from apps.llm.engine.cpu.kernel_cache import kernel
from apps.llm.engine.cpu.vectors import FLOAT, LANES, VECTOR, fma, splat, widen


def _tile(rows: int, groups: int) -> Any:
    """Make the product for `rows` rows and `groups * LANES` columns, whose sums all stay in registers.

    `tile(like_b, a, b, out, n, a_stride, b_stride, out_stride)`: a value of b's type, addresses, strides in elements.
    """

    @intrinsic
    def tile(typing_context, like_b, a, b, out, n, a_stride, b_stride, out_stride):
        def build(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            _, a, b, out, n, a_stride, b_stride, out_stride = args
            word = ir.IntType(64)
            size = ir.Constant(word, like_b.bitwidth // 8)
            four = ir.Constant(word, 4)

            def at(base: ir.Value, row: ir.Value, stride: ir.Value, column: int, size: ir.Constant) -> ir.Value:
                index = builder.add(builder.mul(row, stride), ir.Constant(word, column))
                return builder.add(base, builder.mul(index, size))

            cells = [(r, g) for r in range(rows) for g in range(groups)]
            places, sums = {}, {}
            for r, g in cells:
                address = at(out, ir.Constant(word, r), out_stride, g * LANES, four)
                places[r, g] = builder.inttoptr(address, VECTOR.as_pointer())
                sums[r, g] = cgutils.alloca_once(builder, VECTOR)
                builder.store(builder.load(places[r, g], align=4), sums[r, g])
            with cgutils.for_range(builder, n, intp=word) as loop:
                vectors = [widen(builder, at(b, loop.index, b_stride, g * LANES, size), like_b) for g in range(groups)]
                for r in range(rows):
                    row = at(a, ir.Constant(word, r), a_stride, 0, four)
                    address = builder.inttoptr(builder.add(row, builder.mul(loop.index, four)), FLOAT.as_pointer())
                    scalar = splat(builder, builder.load(address, align=4), VECTOR)
                    for g in range(groups):
                        builder.store(fma(builder, scalar, vectors[g], builder.load(sums[r, g])), sums[r, g])
            for cell in cells:
                builder.store(builder.load(sums[cell]), places[cell], align=4)
            return context.get_dummy_value()

        return types.void(like_b, *[types.int64] * 7), build

    return tile


_tile_4x2, _tile_3x2, _tile_2x2, _tile_1x2 = _tile(4, 2), _tile(3, 2), _tile(2, 2), _tile(1, 2)
_tile_4x1, _tile_1x1 = _tile(4, 1), _tile(1, 1)


@kernel()
def panel(a, b, out, rows, n):
    """`out[:rows] += a[:rows, :n] @ b[:n]`: `b [.., cols]`, `out [rows, cols]`, cols a multiple of LANES.

    Each row sums over n in order, whatever other rows are computed with it.
    """
    cols = b.shape[1]
    kind = b.dtype.type(0)
    size = b.itemsize
    a_stride, b_stride, out_stride = a.strides[0] // 4, b.strides[0] // size, out.strides[0] // 4
    a_data, b_data, out_data = np.int64(a.ctypes.data), np.int64(b.ctypes.data), np.int64(out.ctypes.data)
    column = 0
    while column < cols:
        x, to, y = a_data, out_data + column * 4, b_data + column * size
        wide = cols - column >= 2 * LANES
        row = 0
        while row < rows:
            step = 4 if rows - row >= 4 else (rows - row if wide else 1)
            if wide and step == 4:
                _tile_4x2(kind, x, y, to, n, a_stride, b_stride, out_stride)
            elif wide and step == 3:
                _tile_3x2(kind, x, y, to, n, a_stride, b_stride, out_stride)
            elif wide and step == 2:
                _tile_2x2(kind, x, y, to, n, a_stride, b_stride, out_stride)
            elif wide:
                _tile_1x2(kind, x, y, to, n, a_stride, b_stride, out_stride)
            elif step == 4:
                _tile_4x1(kind, x, y, to, n, a_stride, b_stride, out_stride)
            else:
                _tile_1x1(kind, x, y, to, n, a_stride, b_stride, out_stride)
            row, x, to = row + step, x + step * a_stride * 4, to + step * out_stride * 4
        column += 2 * LANES if wide else LANES
