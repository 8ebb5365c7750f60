"""Hugging Face checkpoints where they lie: a local folder, a hub id, or any fsspec URL such as gs://bucket/model.

Tensors are read by rows straight from the safetensors files: a device that needs an eighth of a matrix reads an
eighth of its bytes, and the host never holds the model. The format is a JSON header and raw little-endian data
(https://github.com/huggingface/safetensors#format), read here directly because the safetensors package opens
local files only.
"""

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec
import ml_dtypes
import numpy as np

DTYPES = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


class CheckpointError(ValueError):
    """The checkpoint is missing something or is damaged; the message names the file."""


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: bytes `[start, stop)` of a file."""

    file: str
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class Checkpoint:
    """A model folder, local or remote. Raises CheckpointError with the file's name when it cannot be read.

    Args:
        weights: False where only its config and tokenizer are wanted: then nothing else is fetched from the hub.
    """

    def __init__(self, location: str, weights: bool = True):
        self.location = _resolve(location, weights)
        self._fs, self._root = fsspec.core.url_to_fs(self.location)
        self._local = isinstance(self._fs, fsspec.implementations.local.LocalFileSystem)
        self._last_read: tuple[tuple[str, int, int] | None, bytes] = None, b""
        if not self._fs.isdir(self._root):
            raise CheckpointError(f"{location}: no such folder")

    def json(self, name: str, required: bool = True) -> Any:
        """A JSON file of the folder; None when it is absent and not required."""
        content = self.file(name)
        if content is None:
            if required:
                raise CheckpointError(f"{self.location}: {name} is missing; a Hugging Face model folder is expected")
            return None
        try:
            return json.loads(content)
        except ValueError as error:
            raise CheckpointError(f"{self.location}/{name} is not valid JSON: {error}") from error

    def file(self, name: str) -> bytes | None:
        """A small file of the folder; None: it has none of that name."""
        path = f"{self._root}/{name}"
        return self._fs.cat_file(path) if self._fs.isfile(path) else None

    def sizes(self) -> dict[str, int]:
        """Bytes of each file in the folder, by name."""
        return {
            Path(info["name"]).name: info["size"]
            for info in self._fs.ls(self._root, detail=True)
            if info["type"] == "file"
        }

    def tokenizer_folder(self) -> str:
        """A local folder that holds the tokenizer's files; a remote checkpoint's are copied to a temporary one."""
        if self._local:
            return self._root
        folder = tempfile.mkdtemp(prefix="podslice-tokenizer-")
        for name in TOKENIZER_FILES:
            if self._fs.isfile(f"{self._root}/{name}"):
                self._fs.get_file(f"{self._root}/{name}", f"{folder}/{name}")
        return folder

    @cached_property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """All tensors by name, from the headers of all safetensors files."""
        index = self.json("model.safetensors.index.json", required=False)
        if index is not None:
            try:
                files = sorted(set(index["weight_map"].values()))
            except (TypeError, AttributeError, KeyError) as error:
                raise CheckpointError(f"{self.location}: model.safetensors.index.json has no weight_map") from error
        elif self._fs.isfile(f"{self._root}/model.safetensors"):
            files = ["model.safetensors"]
        else:
            found = sorted(Path(path).name for path in self._fs.ls(self._root, detail=False))
            hint = ""
            if any(name.endswith((".bin", ".pt", ".pth")) for name in found):
                hint = " (pickled weights are not read: convert them to safetensors)"
            raise CheckpointError(f"{self.location}: no model.safetensors and no model.safetensors.index.json{hint}")
        entries: dict[str, TensorEntry] = {}
        for file in files:
            entries.update(self._header(file))
        return entries

    def _header(self, file: str) -> dict[str, TensorEntry]:
        path = f"{self._root}/{file}"
        if not self._fs.isfile(path):
            raise CheckpointError(f"{self.location}: {file}, named in the index, is missing")
        size = self._fs.size(path)
        length = int.from_bytes(self._fs.cat_file(path, 0, 8), "little") if size >= 8 else 0
        if not 2 <= length <= size - 8:
            raise CheckpointError(f"{self.location}/{file} is no safetensors file or is cut short ({size} bytes)")
        try:
            header = json.loads(self._fs.cat_file(path, 8, 8 + length))
            header.pop("__metadata__", None)
            found = [
                (name, info["dtype"], tuple(map(int, info["shape"])), 8 + length + first, 8 + length + last)
                for name, info in header.items()
                for first, last in [info["data_offsets"]]
            ]
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise CheckpointError(f"{self.location}/{file}: damaged safetensors header: {error!r}") from error
        entries = {}
        for name, kind, shape, start, stop in found:
            if kind not in DTYPES:
                continue  # integer tensors (position ids and the like) are never parameters here
            dtype = DTYPES[kind]
            if start < 8 + length or stop > size or stop - start != math.prod(shape) * dtype.itemsize:
                raise CheckpointError(
                    f"{self.location}/{file} is cut short or damaged: tensor {name} ends at byte {stop} of {size}"
                )
            entries[name] = TensorEntry(file, dtype, shape, start, stop)
        return entries

    def read(self, name: str, shape: tuple[int, ...], rows: slice = slice(None)) -> np.ndarray:
        """Rows `[start, stop)` of a tensor of the given whole shape. Local files are mapped, not copied."""
        entry = self._entry(name)
        if entry.shape != shape:
            raise CheckpointError(
                f"{self.location}/{entry.file}: tensor {name} has shape {entry.shape} where config.json means {shape}"
            )
        first, last, _ = rows.indices(entry.shape[0])
        row_bytes = math.prod(entry.shape[1:]) * entry.dtype.itemsize
        start, count = entry.start + first * row_bytes, last - first
        shape = (count, *entry.shape[1:])
        path = f"{self._root}/{entry.file}"
        if self._local:
            return np.memmap(path, np.uint8, "r", start, (count * row_bytes,)).view(entry.dtype).reshape(shape)
        # Devices that split a matrix by columns ask for the same rows one after the other.
        if self._last_read[0] != (name, start, count):
            self._last_read = (name, start, count), self._fs.cat_file(path, start, start + count * row_bytes)
        return np.frombuffer(self._last_read[1], entry.dtype).reshape(shape)

    def _entry(self, name: str) -> TensorEntry:
        try:
            return self.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.location}: tensor {name} is missing from the safetensors files") from None


def _resolve(location: str, weights: bool) -> str:
    """The folder or URL to read; a hub id is fetched into the hub's own cache first."""
    if "://" in location or Path(location).expanduser().is_dir():
        return location if "://" in location else str(Path(location).expanduser().resolve())
    if location.startswith(("/", ".", "~")) or location.count("/") > 1:
        raise CheckpointError(f"{location}: no such folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "tokenizer.model", "*.txt", "*.jinja", *(["*.safetensors"] if weights else [])]
    try:
        return snapshot_download(location, allow_patterns=patterns)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{location}: neither a local folder nor a model that the Hugging Face hub would give ({reason}); "
            "for a gated model set HF_TOKEN"
        ) from error
