"""Reads what a safetensors file's header says of its tensors, trusting none of it.

The rules are those of the safetensors package: data ranges lie in the file, do not overlap, and are each as long as
the tensor's shape and type. So a header can make nothing be read, or held, that is not in the file. Gaps, which the
package refuses, do no harm: a model that needs what was there says which tensor is missing.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

MOST = 100_000_000
"""Bytes of a header, as in the safetensors package."""
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}
"""Bits of a value, by the type's name."""


class CutShort(ValueError):
    """The header is sound, but the data that it describes are not all there; the message says which."""


class Tensor(NamedTuple):
    """A tensor as its file's header has it: bytes `[start, stop)` after the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def tensors(content: bytes, size: int) -> dict[str, Tensor]:
    """The tensors by name, of a header in JSON and `size` bytes of data after it.

    Raises:
        ValueError: it is damaged; the message says where.
        CutShort: the data are not all there.
    """
    try:
        header = json.loads(content, object_pairs_hook=_unrepeated)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(header, dict):
        raise ValueError("it is not a JSON object")
    header.pop("__metadata__", None)
    found = {name: _tensor(name, info) for name, info in header.items()}
    end = 0
    for name, tensor in sorted(found.items(), key=lambda item: item[1][2:]):
        if tensor.start < end:
            raise ValueError(f"tensor {name!r:.200} at bytes {tensor.start} to {tensor.stop} overlaps another")
        end = tensor.stop
        if end > size:
            raise CutShort(f"tensor {name!r:.200} ends at byte {end} of {size} bytes of data")
    return found


def _tensor(name: str, info: Any) -> Tensor:
    if not isinstance(info, Mapping):
        raise ValueError(f"tensor {name!r:.200} is described by {type(info).__name__}")
    said: list[Any] = [info.get(key) for key in ("dtype", "shape", "data_offsets")]
    dtype, shape, offsets = said
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"tensor {name!r:.200} has the unknown dtype {dtype!r:.100}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {name!r:.200} needs a shape and two data_offsets in whole numbers, not negative")
    start, stop = offsets
    bits = BITS[dtype]
    for side in shape:
        bits *= side
        if bits >> 63 > 8:
            raise ValueError(f"tensor {name!r:.200} is too large")
    if bits != 8 * (stop - start):
        raise ValueError(
            f"tensor {name!r:.200} has {stop - start} bytes of data, but {bits / 8:g} by its shape and dtype {dtype}"
        )
    return Tensor(dtype, tuple(shape), start, stop)


def _are_sizes(value: Any) -> bool:
    """Whether it is a list of numbers that a file's positions or a tensor's sides can be."""
    return isinstance(value, list) and all(type(side) is int and 0 <= side < 1 << 63 for side in value)


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice!r:.200} is there twice")
    return found
