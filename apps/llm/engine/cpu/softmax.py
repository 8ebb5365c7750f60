"""Softmax of a row of attention scores in vector registers, for the attention's kernels."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from apps.llm.engine.cpu.vectors import FLOAT, INTS, LANES, LINE, VECTOR, WORD, fma, splat

LOWEST = -1e30
"""A score that is masked: its weight is 0."""
FACTORS = (1.5252734e-5, 1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
"""ln(2)^k / k!, k = 7 .. 0: of 2 ** x in [-0.5, 0.5]. The remainder is below half a unit in the last place."""
SMALLEST_POWER = -125.0  # subnormal numbers are slow


def _all(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * LANES)


def _call(builder: ir.IRBuilder, name: str, kind: ir.FunctionType, *args: ir.Value, **more: Any) -> ir.Value:
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args, **more)


def _larger(builder: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The larger of each two numbers; y where one of them is NaN."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


@intrinsic
def mask(typing_context, scores, count, low, high):
    """Mask the scores outside `[low, high)` of the row at an address; returns the largest.

    Args:
        count: scores of the row, a multiple of LANES.
    """

    def build(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        scores, count, low, high = args
        number = ir.IntType(32)
        low, high = (splat(builder, builder.trunc(bound, number), INTS) for bound in (low, high))
        most = cgutils.alloca_once_value(builder, _all(LOWEST))
        with cgutils.for_range(builder, builder.sdiv(count, WORD(LANES)), intp=WORD) as loop:
            place = builder.inttoptr(builder.add(scores, builder.mul(loop.index, WORD(LINE))), VECTOR.as_pointer())
            first = splat(builder, builder.trunc(builder.mul(loop.index, WORD(LANES)), number), INTS)
            at = builder.add(first, ir.Constant(INTS, list(range(LANES))))
            inside = builder.and_(builder.icmp_signed(">=", at, low), builder.icmp_signed("<", at, high))
            kept = builder.select(inside, builder.load(place, align=4), _all(LOWEST))
            builder.store(kept, place, align=4)
            builder.store(_larger(builder, kept, builder.load(most)), most)
        kind = ir.FunctionType(FLOAT, [VECTOR])
        return _call(builder, f"llvm.vector.reduce.fmax.v{LANES}f32", kind, builder.load(most), fastmath=("nnan",))

    return types.float32(types.int64, types.int64, types.int64, types.int64), build


@intrinsic
def weigh(typing_context, scores, count, peak):
    """Replace the scores of the row at an address by their weights, 2 ** (score - peak); returns the sum of those.

    2 ** x is a polynomial for the fraction, and the float's exponent bits for the integer part.
    """

    def build(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        scores, count, peak = args
        peak = splat(builder, peak, VECTOR)
        total = cgutils.alloca_once_value(builder, _all(0.0))
        same = ir.FunctionType(VECTOR, [VECTOR])
        with cgutils.for_range(builder, builder.sdiv(count, WORD(LANES)), intp=WORD) as loop:
            place = builder.inttoptr(builder.add(scores, builder.mul(loop.index, WORD(LINE))), VECTOR.as_pointer())
            score = builder.load(place, align=4)
            y = _larger(builder, _all(SMALLEST_POWER), builder.fsub(score, peak))  # NaN stays NaN
            whole = _call(builder, f"llvm.floor.v{LANES}f32", same, builder.fadd(y, _all(0.5)))
            fraction = builder.fsub(y, whole)
            power = _all(FACTORS[0])
            for factor in FACTORS[1:]:
                power = fma(builder, power, fraction, _all(factor))
            # As a number, whatever it is: the fraction keeps NaN.
            integer = builder.fptosi(_larger(builder, whole, _all(SMALLEST_POWER)), INTS)
            exponent = builder.add(integer, ir.Constant(INTS, [127] * LANES))
            scale = builder.bitcast(builder.shl(exponent, ir.Constant(INTS, [23] * LANES)), VECTOR)
            masked = builder.fcmp_ordered("<=", score, _all(LOWEST))
            weight = builder.select(masked, _all(0.0), builder.fmul(power, scale))
            builder.store(weight, place, align=4)
            builder.store(builder.fadd(weight, builder.load(total)), total)
        kind = ir.FunctionType(FLOAT, [FLOAT, VECTOR])
        name, whole_sum = f"llvm.vector.reduce.fadd.v{LANES}f32", builder.load(total)
        return _call(builder, name, kind, ir.Constant(FLOAT, 0.0), whole_sum, fastmath=("reassoc",))

    return types.float32(types.int64, types.int64, types.float32), build
