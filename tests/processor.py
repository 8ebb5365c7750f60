"""What the CPU can do that the tests run on, where right values depend on it."""

from pathlib import Path

_FLAGS = Path("/proc/cpuinfo").read_text()

HAS_AVX512 = "avx512f" in _FLAGS
"""Without it, XLA's products of float32 round one row otherwise than several."""

ROUNDS_ALIKE = HAS_AVX512 and "amx_bf16" not in _FLAGS
"""A row's products do not depend on how many rows are beside it, in float32 and bfloat16 (oneDNN's choice on AMX)."""
