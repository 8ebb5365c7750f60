"""Stable Diffusion checkpoints where they lie: a local folder, a hub id, or any fsspec URL such as gs://bucket/model.

The layout is diffusers': `model_index.json` names the components, each in a folder of its own with a config and
safetensors files. Tensors are read one by one straight from those files (a JSON header, then raw little-endian data:
https://github.com/huggingface/safetensors#format), so that nothing but what a model uses is ever fetched or held.
"""

from __future__ import annotations

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
from fsspec.implementations.local import LocalFileSystem

DTYPES = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
WEIGHT_FILES = {
    "text_encoder": "model",
    "text_encoder_2": "model",
    "unet": "diffusion_pytorch_model",
    "vae": "diffusion_pytorch_model",
}
CLASSES = {
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "CLIPTextModelWithProjection",
    "unet": "UNet2DConditionModel",
    "vae": "AutoencoderKL",
}
PLAIN_PIPELINES = (
    "StableDiffusionPipeline",
    "StableDiffusionImg2ImgPipeline",
    "StableDiffusionInpaintPipeline",
    "LatentConsistencyModelPipeline",
)
XL_PIPELINES = ("StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLInpaintPipeline")
SUPPORTED = "Stable Diffusion 1.x, 2.x and XL in diffusers layout, their Turbo and LCM variants included"


class CheckpointError(ValueError):
    """The checkpoint is missing something, is damaged, or is of another kind; the message names the file or field."""


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: bytes `[start, stop)` of a file."""

    file: str
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class Checkpoint:
    """A Stable Diffusion pipeline's folder, local or remote.

    Raises:
        CheckpointError: it can't be read or isn't a pipeline that this engine runs.
    """

    def __init__(self, location: str) -> None:
        self.location = _resolve(str(location))
        self._fs, self._root = fsspec.core.url_to_fs(self.location)
        self.is_local = isinstance(self._fs, LocalFileSystem)
        if not self._fs.isdir(self._root):
            raise CheckpointError(f"{location}: no such folder")
        self.index = self._json("model_index.json")
        self.pipeline = self.index.get("_class_name")
        if self.pipeline not in (*PLAIN_PIPELINES, *XL_PIPELINES):
            raise CheckpointError(
                f"{self.location}: model_index.json names the pipeline {self.pipeline!r}; supported are {SUPPORTED}"
            )
        for component in self.components:
            name = (self.index.get(component) or [None, None])[1]
            if name is None:
                refiner = " (an XL refiner alone is not served)" if component == "text_encoder" and self.is_xl else ""
                raise CheckpointError(f"{self.location}: the component {component} is missing{refiner}")
            if name != CLASSES[component]:
                raise CheckpointError(
                    f"{self.location}: {component} is a {name}; only {CLASSES[component]} is supported ({SUPPORTED})"
                )

    @property
    def is_xl(self) -> bool:
        return self.pipeline in XL_PIPELINES

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return ("text_encoder", "text_encoder_2") if self.is_xl else ("text_encoder",)

    @property
    def tokenizers(self) -> tuple[str, ...]:
        return ("tokenizer", "tokenizer_2") if self.is_xl else ("tokenizer",)

    @property
    def components(self) -> tuple[str, ...]:
        """Those with weights."""
        return (*self.text_encoders, "unet", "vae")

    def config(self, component: str) -> dict[str, Any]:
        return self._json(f"{component}/config.json")

    @cached_property
    def scheduler_config(self) -> dict[str, Any]:
        return self._json("scheduler/scheduler_config.json")

    def _json(self, name: str) -> dict[str, Any]:
        path = f"{self._root}/{name}"
        if not self._fs.isfile(path):
            hint = "a folder in diffusers layout is expected"
            if name == "model_index.json" and (single := self._single_file()):
                hint = f"{single} is a single-file checkpoint: convert it with diffusers' from_single_file"
            raise CheckpointError(f"{self.location}: {name} is missing; {hint}")
        try:
            found = json.loads(self._fs.cat_file(path))
        except ValueError as error:
            raise CheckpointError(f"{self.location}/{name} is not valid JSON: {error}") from error
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.location}/{name} is not a JSON object")
        return found

    def _single_file(self) -> str | None:
        names = (Path(path).name for path in self._fs.ls(self._root, detail=False))
        return next((name for name in names if name.endswith((".safetensors", ".ckpt"))), None)

    def weight_files(self, component: str) -> tuple[list[str], str | None]:
        """Its safetensors files, and their variant: None, or fp16 where there are no others."""
        base = f"{component}/{WEIGHT_FILES[component]}"
        for variant in (None, "fp16"):
            end = f".{variant}" if variant else ""
            if self._fs.isfile(f"{self._root}/{base}{end}.safetensors"):
                return [f"{base}{end}.safetensors"], variant
            index = f"{base}.safetensors.index{end}.json"
            if self._fs.isfile(f"{self._root}/{index}"):
                weight_map = self._json(index).get("weight_map")
                if not isinstance(weight_map, dict):
                    raise CheckpointError(f"{self.location}/{index} has no weight_map")
                return [f"{component}/{name}" for name in sorted(set(weight_map.values()))], variant
        folder, pickled = f"{self._root}/{component}", []
        if self._fs.isdir(folder):
            names = (Path(path).name for path in self._fs.ls(folder, detail=False))
            pickled = [name for name in names if name.endswith((".bin", ".ckpt", ".pt", ".pth"))]
        hint = (
            f"{component}/{pickled[0]} is a pickle, which is not read: convert the checkpoint with diffusers' "
            "save_pretrained(..., safe_serialization=True), or choose a revision with safetensors"
            if pickled
            else "only safetensors files are read, not pickled .bin or .ckpt files"
        )
        raise CheckpointError(f"{self.location}: {base}.safetensors is missing; {hint}")

    @property
    def variant(self) -> str | None:
        """fp16 if any component has its weights in that variant alone."""
        return next((v for v in (self.weight_files(name)[1] for name in self.components) if v), None)

    def tensors(self, component: str) -> dict[str, TensorEntry]:
        """A component's tensors by name, from the headers of its files."""
        entries: dict[str, TensorEntry] = {}
        for file in self.weight_files(component)[0]:
            entries.update(self._header(file))
        return entries

    def _header(self, file: str) -> Mapping[str, TensorEntry]:
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
            entries = {}
            for name, info in header.items():
                if info["dtype"] not in DTYPES:
                    continue  # integer tensors (position ids) are never weights
                start, stop = (8 + length + offset for offset in info["data_offsets"])
                entries[name] = TensorEntry(file, DTYPES[info["dtype"]], tuple(map(int, info["shape"])), start, stop)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise CheckpointError(f"{self.location}/{file}: damaged safetensors header: {error!r}") from error
        for name, entry in entries.items():
            if entry.stop > size or entry.stop - entry.start != math.prod(entry.shape) * entry.dtype.itemsize:
                raise CheckpointError(f"{self.location}/{file} is cut short or damaged at tensor {name}")
        return entries

    def read(self, entry: TensorEntry) -> np.ndarray:
        """One tensor as it lies in the file. Local files are mapped, not copied."""
        path = f"{self._root}/{entry.file}"
        if self.is_local:
            data = np.memmap(path, np.uint8, "r", entry.start, (entry.stop - entry.start,)) if entry.shape else None
            if data is not None:
                return data.view(entry.dtype).reshape(entry.shape)
        return np.frombuffer(self._fs.cat_file(path, entry.start, entry.stop), entry.dtype).reshape(entry.shape)

    def local_folder(self, *folders: str) -> str:
        """A local folder with these of the pipeline's folders (all that it needs, if none is named)."""
        if self.is_local:
            return self._root
        copy = Path(tempfile.mkdtemp(prefix="podslice-stable-diffusion-"))
        wanted = folders or ("scheduler", *self.tokenizers, *self.components)
        files = ["model_index.json"]
        for folder in wanted:
            if not self._fs.isdir(f"{self._root}/{folder}"):
                raise CheckpointError(f"{self.location}: the folder {folder} is missing")
            names = (Path(path).name for path in self._fs.ls(f"{self._root}/{folder}", detail=False))
            files += [f"{folder}/{name}" for name in names if name.endswith((".json", ".txt"))]
            if folder in WEIGHT_FILES:
                files += self.weight_files(folder)[0]
        for file in files:
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(f"{self._root}/{file}", str(copy / file))
        return str(copy)


def _resolve(location: str) -> str:
    """The folder or URL to read; a hub id is fetched into the hub's own cache first."""
    if "://" in location:
        return location.rstrip("/")
    path = Path(location).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if path.is_file():
        raise CheckpointError(
            f"{location} is a file; a folder in diffusers layout is expected: convert a single-file checkpoint with "
            "diffusers' from_single_file and save_pretrained"
        )
    if location.startswith(("/", ".", "~")) or location.count("/") != 1:
        raise CheckpointError(f"{location}: no such folder")
    return _snapshot(location)


def _snapshot(repository: str) -> str:
    """A local folder with the needed files of a hub repository: weights of the fp16 variant only if it must be."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    def fetch(patterns: list[str]) -> Path:
        try:
            return Path(snapshot_download(repository, allow_patterns=patterns))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise CheckpointError(
                f"{repository}: neither a local folder nor a model that the Hugging Face hub would give ({reason}); "
                "for a gated model set HF_TOKEN"
            ) from error

    wanted = ["model_index.json", "scheduler/*.json", "tokenizer*/*.json", "tokenizer*/*.txt"]
    for component, base in WEIGHT_FILES.items():
        files = ("config.json", f"{base}.safetensors", f"{base}-*-of-*.safetensors", f"{base}.safetensors.index.json")
        wanted += [f"{component}/{file}" for file in files]
    folder = fetch(wanted)
    have_config = [name for name in WEIGHT_FILES if (folder / name / "config.json").is_file()]
    without = [name for name in have_config if not any((folder / name).glob("*.safetensors"))]
    if without:
        files = ("{}.fp16*.safetensors", "{}-*.fp16.safetensors", "{}.safetensors.index.fp16.json")
        fetch([f"{name}/{file.format(WEIGHT_FILES[name])}" for name in without for file in files])
    return str(folder)
