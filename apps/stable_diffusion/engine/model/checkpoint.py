"""Stable Diffusion checkpoints: a local folder, a hub id, or any fsspec URL such as gs://bucket/model.

The layout is diffusers': `model_index.json` names the components, each in its own folder with a config and safetensors
files. Tensors are read one by one, so that only those that a model uses are ever fetched or held.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from apps.arrays.model_folder import CheckpointError, ModelFolder, TensorEntry, from_hub
from apps.serving.numbers.ranges import Range, check
from apps.stable_diffusion.engine.model.config_ranges import FIELDS, SCHEDULER
from apps.stable_diffusion.engine.model.pipelines import KINDS, PLAIN, SUPPORTED, XL, kind_of

ENCODER_FILE, OTHER_FILE = "model", "diffusion_pytorch_model"
"""How files of weights are called: transformers', and diffusers'."""
VAE_FILE = f"{OTHER_FILE}.safetensors"
COMPONENTS = tuple(dict.fromkeys(name for kind in KINDS for name in kind.components))


class ComponentSource(Protocol):
    """Where a component's weights are read."""

    location: str

    def where(self, component: str) -> str:
        """For people."""

    def tensors(self, component: str) -> dict[str, TensorEntry]:
        """A component's tensors by diffusers' names."""

    def read(self, entry: TensorEntry) -> np.ndarray:
        """One tensor as stored in the file."""


class VaeSource(ComponentSource, Protocol):
    """An autoencoder that is not the checkpoint's own."""

    vae_config: dict[str, Any]


class Checkpoint(ModelFolder):
    """A Stable Diffusion pipeline's folder, local or remote.

    Raises:
        CheckpointError: it cannot be read or is not a pipeline that this engine runs.
    """

    other_vae: VaeSource | None = None
    """What is served in place of its own."""

    def __init__(self, location: str) -> None:
        super().__init__(_resolve(str(location)))
        self.index = self._json("model_index.json")
        pipeline = self.index.get("_class_name")
        kind = kind_of(pipeline)
        if kind is None:
            raise CheckpointError(
                f"{self.location}: model_index.json names the pipeline {pipeline!r}; supported are {SUPPORTED}"
            )
        self.kind = kind
        for component, classes in kind.classes.items():
            name = (self.index.get(component) or [None, None])[1]
            if name is None:
                refiner = " (an XL refiner alone is not served)" if component == "text_encoder" and self.is_xl else ""
                raise CheckpointError(f"{self.location}: the component {component} is missing{refiner}")
            if name not in classes:
                only = " or ".join(classes)
                raise CheckpointError(
                    f"{self.location}: {component} is a {name}; only {only} is supported ({SUPPORTED})"
                )

    @property
    def is_xl(self) -> bool:
        return self.kind is XL

    @property
    def distilled(self) -> bool:
        """Whether it makes no pictures with guidance."""
        return bool(self.index.get("is_distilled"))

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return self.kind.text_encoders

    @property
    def text_layers(self) -> int:
        """Of CLIP's text encoder, of which Stable Diffusion 1.x and 2.x can leave out the last ones; 0 for others."""
        return int(self.config("text_encoder")["num_hidden_layers"]) if self.kind is PLAIN else 0

    @property
    def tokenizers(self) -> tuple[str, ...]:
        return self.kind.tokenizers

    @property
    def components(self) -> tuple[str, ...]:
        """Components with weights."""
        return self.kind.components

    def where(self, component: str) -> str:
        """Where its weights are, for people."""
        return f"{self.location}/{component}"

    def config(self, component: str) -> dict[str, Any]:
        """A component's config. Raises CheckpointError if a number in it is out of range."""
        if component == "vae" and self.other_vae is not None:
            return self.other_vae.vae_config
        return self._own_config(component)

    def source(self, component: str) -> ComponentSource:
        """Where its weights are."""
        return self.other_vae if component == "vae" and self.other_vae is not None else self

    def _own_config(self, component: str) -> dict[str, Any]:
        return self._checked(f"{component}/config.json", FIELDS[component])

    @cached_property
    def scheduler_config(self) -> dict[str, Any]:
        return self._checked("scheduler/scheduler_config.json", SCHEDULER)

    def _checked(self, name: str, ranges: Mapping[str, Range]) -> dict[str, Any]:
        config = self._json(name)
        check(f"{self.location}/{name}", config, ranges, CheckpointError)
        return config

    def _json(self, name: str) -> dict[str, Any]:
        found = self.read_json(name)
        if found is None:
            hint = "a folder in diffusers layout is expected"
            if name == "model_index.json" and (single := self._single_file()):
                hint = f"{single} is a checkpoint in a single file: name it, {self.location}/{single}"
            raise CheckpointError(f"{self.location}: {name} is missing; {hint}")
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.location}/{name} is not a JSON object")
        return found

    def _single_file(self) -> str | None:
        return next((name for name in self.sizes() if name.endswith((".safetensors", ".ckpt"))), None)

    def weight_files(self, component: str) -> tuple[list[str], str | None]:
        """A component's safetensors files, and their variant: None, or fp16 if there are no others."""
        base = f"{component}/{_weight_file(component)}"
        for variant in (None, "fp16"):
            end = f".{variant}" if variant else ""
            if self.has(f"{base}{end}.safetensors"):
                return [f"{base}{end}.safetensors"], variant
            shards = self.shards(f"{base}.safetensors.index{end}.json")
            if shards is not None:
                return [f"{component}/{name}" for name in shards], variant
        pickled = [name for name in self.sizes(component) if name.endswith((".bin", ".ckpt", ".pt", ".pth"))]
        hint = (
            f"{component}/{pickled[0]} is a pickle, which is not read: convert the checkpoint with diffusers' "
            "save_pretrained(..., safe_serialization=True), or choose a revision with safetensors"
            if pickled
            else "only safetensors files are read, not pickled .bin or .ckpt files"
        )
        raise CheckpointError(f"{self.location}: {base}.safetensors is missing; {hint}")

    @property
    def variant(self) -> str | None:
        """fp16 if any component has its weights only in that variant."""
        return next((v for v in (self.weight_files(name)[1] for name in self.components) if v), None)

    def tensors(self, component: str) -> dict[str, TensorEntry]:
        """A component's tensors by name, from the headers of its files."""
        entries: dict[str, TensorEntry] = {}
        for file in self.weight_files(component)[0]:
            entries.update(self.header(file))
        return entries

    def read(self, entry: TensorEntry) -> np.ndarray:
        """One tensor as stored in the file."""
        return self.array(entry.file, entry.start, entry.stop, entry.dtype, entry.shape)

    def tokenizer(self, name: str) -> Any:
        """One of the `tokenizers`, transformers'. Raises CheckpointError if it cannot be read."""
        with self.local_folder(name) as folder:
            return read_tokenizer(f"{folder}/{name}", f"{self.location}/{name}")

    @contextmanager
    def local_folder(self, *folders: str) -> Iterator[str]:
        """The pipeline's folder. Of a remote one these folders are copied (all that it needs, if none is named), for as
        long as it takes.
        """
        if self.is_local:
            yield self._root
            return
        with tempfile.TemporaryDirectory(prefix="podslice-stable-diffusion-") as here:
            for file in self._files(folders):
                self.copy(file, Path(here, file))
            yield here

    def _files(self, folders: tuple[str, ...]) -> list[str]:
        wanted = folders or ("scheduler", *self.tokenizers, *self.components)
        files = ["model_index.json"]
        for folder in wanted:
            names = self.sizes(folder)
            if not names:
                raise CheckpointError(f"{self.location}: the folder {folder} is missing")
            files += [f"{folder}/{name}" for name in names if name.endswith((".json", ".txt", ".jinja"))]
            if folder in COMPONENTS:
                files += self.weight_files(folder)[0]
        return files


def read_tokenizer(location: str, where: str) -> Any:
    """transformers' tokenizer of a folder or hub id. Raises CheckpointError."""
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(location)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{where}: no tokenizer can be read: {error}") from error


def _resolve(location: str) -> str:
    """The folder or URL to read; a hub id is fetched into the hub's own cache first."""
    if "://" in location:
        return location.rstrip("/")
    path = Path(location).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if path.is_file():
        raise CheckpointError(f"{location} is a file; a folder in diffusers' layout or a .safetensors file is expected")
    if location.startswith(("/", ".", "~")) or location.count("/") != 1:
        raise CheckpointError(f"{location}: no such folder")
    return _snapshot(location)


def _snapshot(repository: str) -> str:
    """A local folder with the needed files of a hub repository; fp16 weights only if there are no others."""
    wanted = ["model_index.json", "scheduler/*.json", *(f"tokenizer*/*.{end}" for end in ("json", "txt", "jinja"))]
    for component in COMPONENTS:
        base = _weight_file(component)
        files = ("config.json", f"{base}.safetensors", f"{base}-*-of-*.safetensors", f"{base}.safetensors.index.json")
        wanted += [f"{component}/{file}" for file in files]
    folder = from_hub(repository, wanted)
    components = [Path(folder, name) for name in COMPONENTS]
    without = [
        path.name for path in components if (path / "config.json").is_file() and not any(path.glob("*.safetensors"))
    ]
    if without:
        halved = ("{}.fp16*.safetensors", "{}-*.fp16.safetensors", "{}.safetensors.index.fp16.json")
        from_hub(repository, [f"{name}/{file.format(_weight_file(name))}" for name in without for file in halved])
    return folder


def _weight_file(component: str) -> str:
    return ENCODER_FILE if component.startswith("text_encoder") else OTHER_FILE


def needed(config: Mapping[str, Any], component: str, name: str) -> Any:
    """A required field. Raises CheckpointError if it is missing."""
    if config.get(name) is None:
        raise CheckpointError(f"{component}/config.json: the field {name} is missing")
    return config[name]


def refuse_others(config: Mapping[str, Any], component: str, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises CheckpointError for a field whose value is not among the allowed ones; an absent field is fine."""
    for name, values in allowed.items():
        if name in config and config[name] not in values:
            choice = " or ".join(map(repr, values))
            raise CheckpointError(f"{component}/config.json: {name} {config[name]!r} is not supported, only {choice}")
