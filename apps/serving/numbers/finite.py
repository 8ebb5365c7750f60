"""Whether arrays of the host have only finite numbers, at the speed of memory."""

import ml_dtypes
import numpy as np

BLOCK = 1 << 17
"""Numbers that are looked at at once: they stay in a core's cache."""
SIGN = np.uint16(0x7FFF)
INFINITY = {np.dtype(ml_dtypes.bfloat16): 0x7F80, np.dtype(np.float16): 0x7C00}
"""The bits of infinity; those of NaN are above, those of every other number below."""


def all_finite(values: np.ndarray) -> bool:
    """Whether no number is NaN or infinite. NumPy lets other threads run meanwhile.

    Two bytes are compared as integers: NumPy computes with neither of their types in vectors.
    """
    if values.dtype.kind in "iub":
        return True
    infinity = INFINITY.get(values.dtype)
    if infinity is None and values.dtype.kind != "f":
        return bool(np.isfinite(values.astype(np.float32)).all())  # other types of ml_dtypes
    flat = values.reshape(-1) if values.flags.c_contiguous else np.ascontiguousarray(values).reshape(-1)
    for first in range(0, flat.size, BLOCK):
        block = flat[first : first + BLOCK]
        if infinity is None:
            sound = bool(np.isfinite(block.min()) and np.isfinite(block.max()))
        else:
            sound = bool((block.view(np.uint16) & SIGN).max() < infinity)
        if not sound:
            return False
    return True
