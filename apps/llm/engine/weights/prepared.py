"""Prepared checkpoints: weights in the engine's own layout, written by `python -m apps.jobs.prepare`.

A folder or URL with the model's config and tokenizer files and, instead of its weights:

- `manifest.json`: what was prepared and how, the position of each tensor, size and SHA-256 of each file. Written last.
- `layer-00000.safetensors` and so on, `embed.safetensors`, `head.safetensors`: plain safetensors files whose data start
  at a multiple of 64 bytes, so that JAX on a CPU can use the mapped file without a copy.

Tensors are the parameters that `declare` declares, under the names of its tree (`layers.0.qkv`): fused, in the engine's
type, or int8 with `NAME.scale` beside them. They are stored in the order of a mesh of `tensor_parallel` devices:

- split by rows: each device's rows are contiguous. For `gate_up` (each device's gate rows, then its up rows) this holds
  only on the mesh that it was prepared for, for the others on any mesh.
- split by columns (`out`, `down`): cut into one block of columns for each device, stored one after another:
  `[out, in]` becomes `[blocks * out, in / blocks]`.

Files are replaced, never changed in place, because an engine may have them mapped.

Experts are whole. Where devices share their width, int8 scales are still those of whole rows.

So on the mesh that it was prepared for, each device reads one byte range of each parameter, without copies or
computation. Any other mesh that the model can be split over can read it too, as several ranges.
"""

import logging
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field, ValidationError

from apps.arrays.model_folder import DTYPES, MOST_LISTED, CheckpointError, TensorEntry
from apps.llm.engine.weights.checkpoint import Checkpoint
from ray_configs.base import Config
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")

FORMAT: Final = "podslice-prepared"
VERSION = 1
MANIFEST = "manifest.json"
UNFINISHED = "preparing.json"
"""Takes the manifest's place until every file is written: see `apps.jobs.preparation.output`."""
SCALE = ".scale"
OPTIONS = "dtype", "quantize_weights", "tensor_parallel"
"""Options of the command, which are fields of a PreparationRequest."""
STORED_DTYPES = DTYPES | {"I8": np.dtype(np.int8)}


class StoredTensor(Config):
    """A tensor in bytes `[start, stop)` of a file, with its safetensors type and shape."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    split: Literal["rows", "columns"]
    """How the engine splits it over devices, if it does; the module's docstring has the layout."""


class StoredFile(Config):
    size: int
    sha256: str


class PreparationRequest(Config):
    """What to prepare, and how."""

    source: str
    """The model, as the user named it."""
    source_digest: str
    """SHA-256 of its config.json and of the positions of its tensors."""
    dtype: Literal["bfloat16", "float32"]
    quantize_weights: Literal["none", "int8"]
    tensor_parallel: int = Field(ge=1)

    def same_as(self, other: "PreparationRequest") -> bool:
        """Whether both produce the same files, even if they name the model differently."""
        return self._made_from() == other._made_from()

    def _made_from(self) -> dict[str, Any]:
        return self.model_dump(include=set(PreparationRequest.model_fields) - {"source"})


class PreparedManifest(PreparationRequest):
    """The content of `manifest.json`."""

    format: Literal["podslice-prepared"] = FORMAT
    version: int = VERSION
    tensors: dict[str, StoredTensor]
    files: dict[str, StoredFile]

    def json_bytes(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()

    def settle(self, config: EngineConfig) -> EngineConfig:
        """The config, with `quantize_weights` set to int8 if the weights are int8 already.

        Raises:
            ValueError: the weights' dtype is not the config's.
        """
        if config.dtype != self.dtype:
            raise ValueError(
                f"dtype is {config.dtype}, but {config.model} was prepared with dtype {self.dtype}: set dtype to "
                f"{self.dtype}, or prepare it again with --dtype {config.dtype}"
            )
        if self.quantize_weights == "none" or config.quantize_weights == self.quantize_weights:
            return config
        log.info("weights are %s: %s was prepared so", self.quantize_weights, config.model)
        return config.model_copy(update={"quantize_weights": self.quantize_weights})

    @classmethod
    def parse(cls, content: Any, location: str) -> "PreparedManifest":
        """Raises CheckpointError if a newer Podslice wrote the manifest, or it is damaged."""
        version = content.get("version")
        if isinstance(version, int) and version > VERSION:
            raise CheckpointError(
                f"{location} was prepared by a newer Podslice (format {version}; this one reads {VERSION}): update "
                "Podslice, or prepare the model again with this one"
            )
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise CheckpointError(f"{location}/{MANIFEST} is damaged: {field}: {first['msg']}") from error


def manifest_of(folder: Checkpoint) -> PreparedManifest | None:
    """The folder's manifest; None if it is not a prepared checkpoint, or its preparation is not finished.

    Raises:
        CheckpointError: the manifest cannot be read.
    """
    content = folder.json(MANIFEST, required=False, most=MOST_LISTED)
    if isinstance(content, dict) and content.get("format") == FORMAT:
        return PreparedManifest.parse(content, folder.location)
    return None


def open_checkpoint(location: str, weights: bool = True, roots: Sequence[str] | None = None) -> Checkpoint:
    """Open a model in Hugging Face's layout, or a prepared one. See Checkpoint for `weights` and `roots`.

    Raises:
        CheckpointError: it cannot be read, or its preparation is not finished.
    """
    found = Checkpoint(location, weights, roots)
    manifest = manifest_of(found)
    if manifest is not None:
        return Prepared(found.location, manifest, roots)
    begun = found.json(UNFINISHED, required=False)
    if isinstance(begun, dict) and begun.get("format") == FORMAT:
        options = (f"--{name.replace('_', '-')} {begun.get(name)}" for name in OPTIONS)
        raise CheckpointError(
            f"{location} is not fully prepared; to resume where it stopped, run: "
            f"python -m apps.jobs.prepare {begun.get('source')} {location} {' '.join(options)}"
        )
    return found


class Prepared(Checkpoint):
    """A prepared checkpoint. `tensors` and `stored` use the engine's own parameter names."""

    def __init__(self, location: str, manifest: PreparedManifest, roots: Sequence[str] | None = None):
        super().__init__(location, roots=roots)
        self.manifest = manifest

    @cached_property
    def tensors(self) -> dict[str, TensorEntry]:
        """All tensors by name, from the manifest alone; no file header is read. Checks the sizes of the files."""
        sizes = self.sizes()
        for file in sorted({tensor.file for tensor in self.manifest.tensors.values()}):
            if problem := size_problem(file, self.manifest.files.get(file), sizes.get(file)):
                raise CheckpointError(
                    f"{self.location}/{problem}; prepare the model again: only this file is rewritten"
                )
        found = {}
        for name, tensor in self.manifest.tensors.items():
            dtype = STORED_DTYPES.get(tensor.dtype)
            size = -1 if dtype is None or min(tensor.shape, default=0) < 0 else math.prod(tensor.shape) * dtype.itemsize
            if dtype is None or not 0 <= tensor.start <= tensor.stop <= sizes[tensor.file]:
                size = -1
            if dtype is None or size != tensor.stop - tensor.start:
                raise CheckpointError(f"{self.location}/{MANIFEST} is damaged: tensor {name} is not in {tensor.file}")
            found[name] = TensorEntry(tensor.file, dtype, tensor.shape, tensor.start, tensor.stop)
        return found

    def has_own_head(self) -> bool:
        return "lm_head" in self.manifest.tensors

    def settle(self, config: EngineConfig) -> EngineConfig:
        """As `PreparedManifest.settle`."""
        return self.manifest.settle(config)


def size_problem(file: str, stored: StoredFile | None, size: int | None) -> str:
    """What is wrong with a file's size; empty if nothing is."""
    if stored is None:
        return f"{MANIFEST} does not list {file}"
    if size is None:
        return f"{file} is missing"
    return "" if size == stored.size else f"{file} has {size} bytes where {MANIFEST} says {stored.size}"
