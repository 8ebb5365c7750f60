"""Headers of safetensors files. The oracle is the safetensors package: what it refuses is refused, but for gaps between
tensors, and what it reads is read the same."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from apps.arrays import safetensors_header
from apps.arrays.model_folder import DTYPES, CheckpointError, ModelFolder
from apps.arrays.safetensors_header import tensors

F32 = {"F32": np.dtype(np.float32)}


def write(path: Path, head: Any, data: bytes, length: int | None = None) -> None:
    content = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(content) if length is None else length) + content + data)


def theirs(path: Path) -> dict[str, np.ndarray] | None:
    """What the package reads; None if it refuses."""
    try:
        with safe_open(path, "np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError, OverflowError):
        return None


def ours(path: Path) -> dict[str, np.ndarray] | None:
    folder = ModelFolder(str(path.parent))
    try:
        found = folder.header(path.name, F32)
    except CheckpointError as error:
        assert path.name in str(error)
        return None
    return {name: folder.array(e.file, e.start, e.stop, e.dtype, e.shape) for name, e in found.items()}


def tensor(shape: Any, start: Any, stop: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def gaps(content: bytes) -> bool:
    length = int.from_bytes(content[:8], "little")
    ranges = sorted(
        info["data_offsets"] for name, info in json.loads(content[8 : 8 + length]).items() if name[0] != "_"
    )
    ends = [0, *(stop for _, stop in ranges)]
    return any(start > end for (start, _), end in zip(ranges, ends)) or ends[-1] < len(content) - 8 - length


WHOLE = {"a": tensor([2], 0, 8), "b": tensor([1, 2], 8, 16)}
CASES: dict[str, tuple[Any, bytes]] = {
    "whole": (WHOLE, bytes(16)),
    "in another order": ({"b": WHOLE["b"], "a": WHOLE["a"]}, bytes(16)),
    "with metadata": ({"__metadata__": {"x": "y"}} | WHOLE, bytes(16)),
    "scalar": ({"a": tensor([], 0, 4)}, bytes(4)),
    "empty tensor": ({"a": tensor([0, 5], 0, 0), "b": tensor([2], 0, 8)}, bytes(8)),
    "nothing": ({}, b""),
    "cut short": (WHOLE, bytes(15)),
    "more than tensors": (WHOLE, bytes(17)),
    "a hole": ({"a": tensor([2], 0, 8), "b": tensor([2], 12, 20)}, bytes(20)),
    "a hole before": ({"a": tensor([2], 4, 12)}, bytes(12)),
    "overlap": ({"a": tensor([2], 0, 8), "b": tensor([2], 4, 12)}, bytes(12)),
    "the same twice": ({"a": tensor([2], 0, 8), "b": tensor([2], 0, 8)}, bytes(8)),
    "backwards": ({"a": tensor([2], 8, 0)}, bytes(8)),
    "negative start": ({"a": tensor([2], -8, 0)}, bytes(8)),
    "negative sides": ({"a": tensor([-1, -2], 0, 8)}, bytes(8)),
    "too many": ({"a": tensor([3], 0, 8)}, bytes(8)),
    "a side of 2^63": ({"a": tensor([1 << 63, 0], 0, 0)}, b""),
    "a product of 2^64": ({"a": tensor([1 << 32, 1 << 32], 0, 0)}, b""),
    "offsets of 2^63": ({"a": tensor([2], 1 << 63, (1 << 63) + 8)}, bytes(8)),
    "offsets of 2^80": ({"a": tensor([2], 1 << 80, (1 << 80) + 8)}, bytes(8)),
    "sides as text": ({"a": tensor(["2"], 0, 8)}, bytes(8)),
    "sides as fractions": ({"a": tensor([2.0], 0, 8)}, bytes(8)),
    "sides as truth": ({"a": tensor([True, 2], 0, 8)}, bytes(8)),
    "no sides": ({"a": tensor(None, 0, 8)}, bytes(8)),
    "sides in an object": ({"a": tensor({"0": 2}, 0, 8)}, bytes(8)),
    "unknown dtype": ({"a": tensor([2], 0, 8, "F33")}, bytes(8)),
    "dtype as number": ({"a": tensor([2], 0, 8, 32)}, bytes(8)),
    "three offsets": ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, bytes(8)),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "a tensor that is a list": ({"a": []}, b""),
    "a list": ([], b""),
    "a number": (7, b""),
    "no JSON": (b"{not json", b""),
    "half a character": (b'{"\xff": 1}', b""),
    "a name twice": (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                     b'"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', bytes(8)),
    "nested": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""),
    "5,000 digits": (b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}', bytes(8)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_the_package_refuses_is_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path, *CASES[case])
    expected, found = theirs(path), ours(path)
    if case in ("a hole", "a hole before", "more than tensors"):
        assert expected is None and found is not None, "what lies between tensors does no harm"
        return
    if case == "a name twice":  # the package reads the last, if it is whole by itself
        assert found is None
        return
    assert (expected is None) == (found is None)
    if expected is not None and found is not None:
        assert expected.keys() == found.keys()
        assert all(expected[name].shape == found[name].shape for name in expected)


def test_a_repeated_name_is_found_among_many() -> None:
    """Looking each name up in a list of all takes the square of the time: for this header, ten minutes."""
    names = [f'"{number}":0' for number in range(400_000)]
    with pytest.raises(ValueError, match="'399999' is there twice"):
        tensors(f"{{{','.join([*names, names[-1]])}}}".encode(), 0)


@pytest.mark.parametrize("length", [0, 1, 2**63, 2**64 - 1, 10**9, safetensors_header.MOST + 1, 3])
def test_a_length_that_is_no_headers(length: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path, {}, bytes(8), length)
    assert theirs(path) is ours(path) is None


def test_a_header_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path, json.dumps(WHOLE).encode() + b" " * 100, bytes(16))
    assert ours(path) is not None
    with pytest.raises(CheckpointError, match=r"model\.safetensors: its header has \d+ bytes; at most 100 are read"):
        ModelFolder(str(tmp_path)).header(path.name, DTYPES, most=100)


def test_files_cut_and_changed_anywhere(tmp_path: Path) -> None:
    path, draw = tmp_path / "model.safetensors", random.Random(11)
    save_file({name: np.arange(size, dtype=np.float32) for name, size in (("a", 3), ("b", 0), ("c", 40))}, path)
    whole = path.read_bytes()
    refused = 0
    for _ in range(400):
        at = draw.randrange(len(whole) // 2)
        cut = whole[:at] if draw.random() < 0.3 else whole[:at] + draw.randbytes(1) + whole[at + 1 :]
        path.write_bytes(cut)
        expected, found = theirs(path), ours(path)
        refused += found is None
        if found is not None and expected is None:
            assert gaps(cut), "the package refuses gaps alone that we do not"
        if expected is not None and found is not None:
            for name, values in found.items():
                np.testing.assert_array_equal(values, expected[name])
    assert refused > 100


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_over_the_limit_is_not_read(name: str, tmp_path: Path) -> None:
    with open(tmp_path / name, "wb") as file:
        file.truncate(1_500_000_000)
    folder = ModelFolder(str(tmp_path))
    with pytest.raises(CheckpointError, match=rf"{name} has 1500000000 bytes; at most"):
        folder.read_json(name) if name == "config.json" else folder.shards(name)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": ' * 100_000, "9" * 5000, "{", "\ud800", ""])
def test_json_that_is_none_is_an_error_that_names_the_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content, errors="surrogatepass")
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON"):
        ModelFolder(str(tmp_path)).read_json("config.json")
