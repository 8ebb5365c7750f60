"""A model's folder, on this machine or at any fsspec URL such as gs://bucket/model, and its safetensors files.

Tensors are read straight from the safetensors files as byte ranges, so a host that needs an eighth of a matrix reads
an eighth and never holds the whole model. The format is a JSON header and raw little-endian data
(https://github.com/huggingface/safetensors#format). It is parsed here because the safetensors package opens local
files only.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import ml_dtypes
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from apps.arrays import safetensors_header
from apps.serving.model_roots import is_plain, link_out
from apps.serving.progress import LEAST_S, tell

MB = 10**6
MOST_JSON, MOST_LISTED = 16 << 20, 64 << 20
"""Bytes of a JSON file, and of one that lists a model's tensors."""
DTYPES = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
QUANTIZED_DTYPES = {
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
}


class CheckpointError(ValueError):
    """The checkpoint is incomplete, damaged or of an unsupported kind; the message names the file or field."""


@dataclass(frozen=True)
class TensorEntry:
    """The position of one tensor: bytes `[start, stop)` of a file."""

    file: str
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class ModelFolder:
    """A model's folder. Files are named by their path in it.

    Args:
        location: a local folder or an fsspec URL.
        roots: folders below which others may name models: links in such a folder may not leave them.

    Raises:
        CheckpointError: there is no such folder, or a link in it leads out of the roots.
    """

    def __init__(self, location: str, roots: Sequence[str] | None = None):
        self.location = location
        self._fs, self._root = fsspec.core.url_to_fs(location)
        self.is_local = isinstance(self._fs, LocalFileSystem)
        if not self._fs.isdir(self._root):
            raise CheckpointError(f"{location}: no such folder")
        if self.is_local and (link := link_out(self._root, roots or ())):
            raise CheckpointError(f"{location}: the link {link} leads out of model_roots")

    def path(self, name: str) -> str:
        """The file's path in its file system.

        Raises:
            CheckpointError: the name, which another file may have given, leads out of the folder.
        """
        if not is_plain(name):
            raise CheckpointError(f"{self.location}: {name!r:.200} is no name of a file in the folder")
        return f"{self._root}/{name}"

    def has(self, name: str) -> bool:
        return self._fs.isfile(self.path(name))

    def file(self, name: str) -> bytes | None:
        """The content of a small file; None if there is no such file."""
        return self._fs.cat_file(self.path(name)) if self.has(name) else None

    def read_json(self, name: str, most: int = MOST_JSON) -> Any:
        """A JSON file's value; None if there is no such file.

        Args:
            most: bytes of the file; a larger one is not read.

        Raises:
            CheckpointError: it is not JSON, or too large.
        """
        if not self.has(name):
            return None
        if (size := self._fs.size(self.path(name))) > most:
            raise CheckpointError(f"{self.location}/{name} has {size} bytes; at most {most} are read of such a file")
        content = self._fs.cat_file(self.path(name), 0, most + 1)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.location}/{name} is not valid JSON: {error}") from error

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Bytes of each file by name, in this folder or in a folder in it. Empty if that does not exist."""
        path = self.path(folder) if folder else self._root
        if not self._fs.isdir(path):
            return {}
        listed = self._fs.ls(path, detail=True)
        return {Path(info["name"]).name: info["size"] for info in listed if info["type"] == "file"}

    def version(self, name: str) -> bytes:
        """What tells this content of a remote file from others: the store's own checksum, or when it was changed."""
        info = self._fs.info(self.path(name))
        keys = ("md5Hash", "crc32c", "ETag", "etag", "content_md5", "LastModified", "mtime", "created")
        return next((f"{key} {info[key]}".encode() for key in keys if info.get(key)), b"")

    def copy(self, name: str, to: Path) -> None:
        """Copy a file to a local path."""
        to.parent.mkdir(parents=True, exist_ok=True)
        self._fs.get_file(self.path(name), str(to))

    def shards(self, index: str) -> list[str] | None:
        """The files that a `.safetensors.index.json` names; None if there is no such index.

        Raises:
            CheckpointError: the index is damaged.
        """
        content = self.read_json(index, MOST_LISTED)
        if content is None:
            return None
        try:
            files = sorted(set(content["weight_map"].values()))
        except (TypeError, AttributeError, KeyError) as error:
            raise CheckpointError(f"{self.location}/{index} has no weight_map") from error
        for file in files:
            if not isinstance(file, str) or not is_plain(file):
                raise CheckpointError(f"{self.location}/{index}: {file!r:.200} is no name of a file in the folder")
        return files

    def header(
        self, file: str, dtypes: Mapping[str, np.dtype] = DTYPES, most: int = safetensors_header.MOST
    ) -> dict[str, TensorEntry]:
        """The tensors of one safetensors file that have one of the types, by name.

        Args:
            most: bytes of the header.

        Raises:
            CheckpointError: it is missing, cut short or damaged.
        """
        if not self.has(file):
            raise CheckpointError(f"{self.location}: {file} is missing, but the index names it")
        path = self.path(file)
        size = self._fs.size(path)
        length = int.from_bytes(self._fs.cat_file(path, 0, 8), "little") if size >= 8 else 0
        if not 2 <= length <= size - 8:
            raise CheckpointError(f"{self.location}/{file} is not a safetensors file or is cut short ({size} bytes)")
        if length > most:
            raise CheckpointError(f"{self.location}/{file}: its header has {length} bytes; at most {most} are read")
        begin = 8 + length
        try:
            found = safetensors_header.tensors(self._fs.cat_file(path, 8, begin), size - begin)
        except safetensors_header.CutShort as error:
            raise CheckpointError(f"{self.location}/{file} is cut short or damaged: {error}") from error
        except ValueError as error:
            raise CheckpointError(f"{self.location}/{file}: damaged safetensors header: {error}") from error
        return {  # other types are of position ids and the like, which are never parameters here
            name: TensorEntry(file, dtypes[tensor.dtype], tensor.shape, begin + tensor.start, begin + tensor.stop)
            for name, tensor in found.items()
            if tensor.dtype in dtypes
        }

    def metadata(self, file: str) -> dict[str, str]:
        """What a safetensors file, whose `header` was read, says of itself; empty if it says nothing."""
        path = self.path(file)
        length = int.from_bytes(self._fs.cat_file(path, 0, 8), "little")
        found = json.loads(self._fs.cat_file(path, 8, 8 + length)).get("__metadata__")
        return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}

    def array(self, file: str, start: int, stop: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Bytes `[start, stop)` of a file as an array. Local files are mapped, not copied."""
        if self.is_local and start < stop:
            mapped = np.memmap(self.path(file), np.uint8, "r", start, (stop - start,))
            return mapped.view(dtype).reshape(shape)
        return np.frombuffer(self._fs.cat_file(self.path(file), start, stop), dtype).reshape(shape)


def from_hub(repository: str, patterns: Sequence[str]) -> str:
    """Fetch a repository's files of these patterns into the Hugging Face hub's own cache, and return the folder.

    Raises:
        CheckpointError: the hub does not have the repository, or refuses access.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # the package comes without types
        """The hub's progress bar; reports the one for the bytes of all files. Cached files do not count."""

        def __init__(self, *args: Any, name: str | None = None, **options: Any):
            super().__init__(*args, name=name, **options)
            self._of_all, self._bytes, self._told = name == "huggingface_hub.snapshot_download", 0, 0.0

        def update(self, n: float | None = 1) -> bool | None:
            self._bytes += int(n or 0)
            done, total, now = self._bytes // MB, int(self.total or 0) // MB, time.monotonic()
            if self._of_all and total and (now - self._told > LEAST_S or done == total):
                self._told = now
                tell({"part": "downloading, MB", "done": done, "total": total})
            return super().update(n)

    try:
        return snapshot_download(repository, allow_patterns=list(patterns), tqdm_class=Bar)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{repository}: neither a local folder nor a model available from the Hugging Face hub ({reason}); "
            "for a gated model set HF_TOKEN"
        ) from error
