"""What the CPU can do that the tests run on, where right values depend on it."""

from pathlib import Path

HAS_AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text()
"""Without it, XLA's products of float32 round one row otherwise than several."""
