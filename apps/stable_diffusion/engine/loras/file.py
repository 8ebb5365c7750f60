"""Reads a LoRA's file and checks it against a model. Only safetensors: a pickle could run any code."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from apps.arrays.model_folder import DTYPES, QUANTIZED_DTYPES, CheckpointError, ModelFolder, TensorEntry, from_hub
from apps.serving.model_roots import HUB
from apps.stable_diffusion.engine.ldm.locations import PICKLES
from apps.stable_diffusion.engine.loras.layers import LoraLayer
from apps.stable_diffusion.engine.loras.names import LoraNames, Part, other_method

DEFAULT = "pytorch_lora_weights.safetensors"
"""The file's name in a folder that diffusers has saved."""
MOST_HEADER = 32 << 20
"""Bytes of a header: fifty times those of an XL LoRA with every layer."""
LONGEST_KEY = 400
"""Characters of a key."""
LARGEST = 1e18
"""Of a number, times the scale: the product of two larger ones is infinite in float32."""
WHOLE = {"I64": np.dtype(np.int64), "BOOL": np.dtype(bool)}
"""Types that a matrix cannot have. Trainers write alpha as I64."""
READABLE = (*DTYPES.values(), *(dtype for name, dtype in QUANTIZED_DTYPES.items() if name.startswith("F8")))

_serials = itertools.count(1)


@dataclass(frozen=True, eq=False)
class LoraFile:
    """A LoRA's file, whose header fits the model."""

    folder: ModelFolder
    name: str
    layers: Mapping[tuple[str, str], Mapping[Part, TensorEntry]]
    """By component and layer: its tensors."""
    shapes: Mapping[tuple[str, str], LoraLayer]
    metadata: Mapping[str, str]
    """What the trainer wrote of itself."""
    alphas: Mapping[str, float] = field(default_factory=dict)
    """Of layers whose alpha is in the metadata, by `component.layer`."""
    version: bytes = b""
    """Of the file, when its header was read."""
    content: bytes | None = None
    """All of a remote file: its many small tensors would each be fetched."""
    serial: int = field(default_factory=lambda: next(_serials))
    """Tells it from every other that this process has opened."""

    @classmethod
    def open(cls, location: str, names: LoraNames, roots: Sequence[str] | None = None) -> "LoraFile":
        """Read the header.

        Args:
            location: a file, or a folder with one: local, at a URL, or on the hub as OWNER/NAME or OWNER/NAME/FILE.
            roots: the places that others may name, if another names it.

        Raises:
            CheckpointError: it cannot be read, or does not fit; the message names the file and the key.
        """
        folder, name = _located(location, roots)
        where = f"{location}" if location.endswith(name) else f"{location}/{name}"
        entries = folder.header(name, {**DTYPES, **QUANTIZED_DTYPES, **WHOLE}, MOST_HEADER)
        metadata = folder.metadata(name)
        layers: dict[tuple[str, str], dict[Part, TensorEntry]] = {}
        for key, entry in entries.items():
            if len(key) > LONGEST_KEY:
                raise CheckpointError(f"{where}: a key has {len(key)} characters; at most {LONGEST_KEY} are read")
            if method := other_method(key):
                raise CheckpointError(f"{where}: the key {key} is of {method}, not of LoRA, which alone is served")
            found = names.read(key)
            if found is None:
                made_for = next((metadata[each] for each in MADE_FOR if metadata.get(each)), None)
                hint = f": its file says that it was made for {made_for!r:.100}" if made_for else ""
                raise CheckpointError(
                    f"{where}: the key {key} names no layer of this model{hint}; use a LoRA made for this model's kind"
                )
            if found.part in layers.setdefault((found.component, found.layer), {}):
                raise CheckpointError(f"{where}: two keys are the {found.part} of one layer; the second is {key}")
            if found.part != "alpha" and entry.dtype not in READABLE:
                raise CheckpointError(f"{where}: the key {key} has the type {entry.dtype}; save it as F16 or BF16")
            layers[found.component, found.layer][found.part] = entry
        if not layers:
            raise CheckpointError(f"{where} has no tensors")
        shapes = {place: names.layers[place[0]][place[1]] for place in layers}
        alphas = _alphas(where, metadata, layers)
        content = None if folder.is_local else folder.file(name)
        opened = cls(folder, name, layers, shapes, metadata, alphas, folder.version(name), content)
        for (component, layer), tensors in layers.items():
            _check_shapes(f"{where}: {component}.{layer}", tensors, shapes[component, layer])
        return opened

    @property
    def where(self) -> str:
        return f"{self.folder.location}/{self.name}"

    @property
    def ranks(self) -> Mapping[tuple[str, str], int]:
        return {place: tensors["down"].shape[0] for place, tensors in self.layers.items()}

    @property
    def alias(self) -> str | None:
        """The name that its trainer gave it."""
        return self.metadata.get("ss_output_name") or None

    def pair(self, component: str, layer: str, weight: float) -> tuple[np.ndarray, np.ndarray]:
        """A layer's matrices in float32, in the shapes of `LoraLayer.shapes`; up is scaled by alpha and weight.

        Raises:
            CheckpointError: a number is not finite, or beyond all measure; the message names the tensor.
        """
        tensors, shape = self.layers[component, layer], self.shapes[component, layer]
        rank = tensors["down"].shape[0]
        alpha = self.alphas.get(f"{component}.{layer}", float(rank))
        if "alpha" in tensors:
            alpha = float(self._read(tensors["alpha"]).reshape(-1)[0])
        down = self._read(tensors["down"])
        down = down.transpose(2, 3, 0, 1) if shape.size > 1 else down.reshape(rank, shape.inputs)
        up = self._read(tensors["up"]).reshape(shape.outputs, rank).T
        with np.errstate(over="ignore", invalid="ignore"):  # the check says it better
            up = up * np.float32(alpha / rank * weight)
        for name, array in (("down", down), ("up", up)):
            largest = np.abs(array).max(initial=0)
            if not largest <= LARGEST:
                raise CheckpointError(
                    f"{self.where}: {component}.{layer}: the {name} matrix has numbers that are not finite, or larger "
                    f"than {LARGEST:g} with alpha {alpha:g} and the weight {weight:g}: {largest:g}"
                )
        return down, up

    def check_unchanged(self) -> None:
        """Raises CheckpointError if a local file was written anew: its tensors may lie elsewhere in it now."""
        if self.content is None and (not self.folder.has(self.name) or self.folder.version(self.name) != self.version):
            raise CheckpointError(f"{self.where} has changed since it was loaded: load it again")

    def check_numbers(self) -> None:
        """Read all of it once. Raises CheckpointError, as `pair`."""
        for component, layer in self.layers:
            self.pair(component, layer, 1.0)

    def _read(self, entry: TensorEntry) -> np.ndarray:
        if self.content is not None:
            found = np.frombuffer(self.content[entry.start : entry.stop], entry.dtype).reshape(entry.shape)
        else:
            found = self.folder.array(entry.file, entry.start, entry.stop, entry.dtype, entry.shape)
        return found.astype(np.float32)


MADE_FOR = ("modelspec.architecture", "ss_base_model_version")
"""Where trainers say what a LoRA changes."""


def _located(location: str, roots: Sequence[str] | None) -> tuple[ModelFolder, str]:
    """The folder, and the file's name in it."""
    if location.endswith(PICKLES):
        raise CheckpointError(f"{location} is a pickle, which is not read: save the LoRA as safetensors")
    of_hub, path = location.removeprefix(HUB), Path(location).expanduser()
    is_file = location.endswith(".safetensors")
    if of_hub == location and ("://" in location or path.exists() or location.startswith(("/", ".", "~"))):
        plain = location if "://" in location else str(path)
        folder, _, name = plain.rpartition("/") if is_file else (plain, "", "")
        opened = ModelFolder(folder or ".", roots)
    else:
        owner, _, name = of_hub.rpartition("/") if is_file else (of_hub, "", "")
        if owner.count("/") != 1:
            raise CheckpointError(f"{location}: no such file; on the hub, name it OWNER/NAME or OWNER/NAME/FILE")
        opened = ModelFolder(from_hub(owner, [name or DEFAULT]))
    if not is_file:
        names = sorted(each for each in opened.sizes() if each.endswith(".safetensors"))
        name = DEFAULT if DEFAULT in names else names[0] if len(names) == 1 else ""
        if not name:
            pickled = [each for each in opened.sizes() if each.endswith(PICKLES)]
            hint = f"; {pickled[0]} is a pickle, which is not read: save it as safetensors" if pickled else ""
            found = f"{len(names)} files in safetensors: name one of them" if names else f"no file in safetensors{hint}"
            raise CheckpointError(f"{location} has {found}")
    if not opened.has(name):
        raise CheckpointError(f"{location}: no such file")
    return opened, name


def _check_shapes(where: str, tensors: Mapping[Part, TensorEntry], layer: LoraLayer) -> None:
    for part in ("down", "up"):
        if part not in tensors:
            raise CheckpointError(f"{where}: the {part} matrix is missing; its file is incomplete")
    down, up = tensors["down"].shape, tensors["up"].shape
    rank = down[0] if down else 0
    kernel = (layer.size, layer.size)
    downs = {(rank, layer.inputs, *kernel)} | ({(rank, layer.inputs)} if layer.size == 1 else set())
    ups = {(layer.outputs, rank), (layer.outputs, rank, 1, 1)}
    for part, shape, allowed in (("down", down, downs), ("up", up, ups)):
        if shape not in allowed or rank == 0:
            raise CheckpointError(
                f"{where}: the {part} matrix has shape {list(shape)}, and the model's layer implies "
                f"{list(min(allowed))}: the LoRA was made for another base model"
            )
    if "alpha" in tensors and int(np.prod(tensors["alpha"].shape)) != 1:
        raise CheckpointError(f"{where}: alpha has shape {list(tensors['alpha'].shape)}; it must be one number")


def _alphas(where: str, metadata: Mapping[str, str], layers: Mapping[tuple[str, str], Any]) -> dict[str, float]:
    """The alphas that diffusers writes into the metadata as PEFT's configs, by `component.layer`."""
    written = metadata.get("lora_adapter_metadata")
    if not written:
        return {}
    try:
        config = json.loads(written)
        for key, value in config.items():
            if value and key.endswith((".use_dora", ".lora_bias", ".modules_to_save", ".use_rslora")):
                raise CheckpointError(f"{where}: lora_adapter_metadata has {key} {value!r:.100}, which is not served")
        found = {}
        for component, layer in layers:
            alpha = config.get(f"{component}.lora_alpha")
            patterns = config.get(f"{component}.alpha_pattern") or {}
            alpha = next((each for key, each in patterns.items() if _ends(layer, key)), alpha)
            if alpha is not None:
                found[f"{component}.{layer}"] = float(alpha)
        return found
    except CheckpointError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{where}: lora_adapter_metadata in its header cannot be read: {error}") from error


def _ends(layer: str, key: str) -> bool:
    """Whether a key of PEFT's `alpha_pattern`, written by diffusers as the end of a module's name, means the layer."""
    if not re.fullmatch(r"[\w.]+", key):
        raise ValueError(f"alpha_pattern has {key!r:.100}; only modules' names are read")
    key = key.removeprefix("text_model.")
    return layer == key or layer.endswith(f".{key}")
