"""Vector instructions for Numba, emitted through llvmlite: Numba itself leaves them to LLVM's loop vectorizer."""

from functools import cache
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from apps.llm.engine.cpu.kernel_cache import kernel

LANES = 16  # float32 values in a 512-bit vector; CPUs with narrower vectors use several registers
LINE = 64  # bytes of a cache line

WORD = ir.IntType(64)
FLOAT = ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)
INTS = ir.VectorType(ir.IntType(32), LANES)


@cache
def has(feature: str) -> bool:
    """Whether Numba compiles for a CPU that has a feature, by LLVM's name. It compiles for the CPU that it runs on."""
    if numba.config.CPU_NAME is not None or numba.config.CPU_FEATURES is not None:  # or for what it is told
        return f"+{feature}" in (numba.config.CPU_FEATURES or "").split(",")
    return llvmlite.binding.get_host_cpu_features().get(feature, False)


def widen(builder: ir.IRBuilder, address: ir.Value, element: types.Type) -> ir.Value:
    """Load LANES elements (bfloat16 bits, float32 or int8) as float32."""
    if element == types.float32:
        return builder.load(builder.inttoptr(address, VECTOR.as_pointer()), align=4)
    bits = ir.VectorType(ir.IntType(element.bitwidth), LANES)
    loaded = builder.load(builder.inttoptr(address, bits.as_pointer()), align=1)
    if element == types.uint16:
        shift = ir.Constant(INTS, [16] * LANES)
        return builder.bitcast(builder.shl(builder.zext(loaded, INTS), shift), VECTOR)
    return builder.sitofp(loaded, VECTOR)


def splat(builder: ir.IRBuilder, scalar: ir.Value, vector: ir.VectorType) -> ir.Value:
    """A vector of LANES times the scalar."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.IntType(32)(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(INTS, [0] * LANES))


def fma(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, for VECTORs."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(function, (x, y, z))


def prefetch_line(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch the cache line at an address into the second level. The address need not be a valid one.

    Into the first, it would wait for one of the few buffers that loads need too: products of 8 rows took half as long
    again.
    """
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, second_level, data = number(0), number(2), number(1)
    builder.call(function, (builder.inttoptr(address, pointer), read, second_level, data))


@intrinsic
def _prefetch_line(typing_context, address):
    def build(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        prefetch_line(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), build


@kernel()
def prefetch(b):
    """Prefetch a contiguous array into the core's cache. A page is too short for the hardware prefetcher to notice."""
    address = np.int64(b.ctypes.data)
    for line in range(0, b.size * b.itemsize, LINE):
        _prefetch_line(address + line)
