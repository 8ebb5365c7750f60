"""A language model's checkpoint: a local folder, a hub id, or any fsspec URL such as gs://bucket/model."""

import logging
import math
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from apps.arrays.checkpoint_formats import QuantizedFormat
from apps.arrays.model_folder import (
    DTYPES,
    MOST_JSON,
    QUANTIZED_DTYPES,
    CheckpointError,
    ModelFolder,
    TensorEntry,
    from_hub,
)
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.weights import packed_experts
from apps.llm.engine.weights.quantization_config import format_of
from apps.serving.model_roots import HUB, is_hub_id
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")

INDEX = "model.safetensors.index.json"
DECODER_PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    **dict.fromkeys(("vision_tower.vision_model.", "model.vision_tower.vision_model."), "model.vision_tower."),
    **{name: f"model.{name}" for name in ("layers.", "embed_tokens.", "norm.")},
    **{name: f"model.{name}" for name in ("visual.", "vision_tower.", "multi_modal_projector.", "embed_vision.")},
}
"""How tensors begin elsewhere, and in a checkpoint of a causal language model, or of one that transformers has saved.

Beside a vision tower transformers writes `language_model.`; the first is how it names them in memory. The fourth is
that of SigLIP's tower in Gemma 3's files, which transformers writes without its second part. The next three are those
of a model without a head, such as one for embeddings (Qwen3-Embedding), the last those of towers.
"""
OF_DECODER = "model.layers.", "model.embed_tokens", "model.per_layer_", "model.norm.", "lm_head."
EMBEDDINGS, HEAD, CLASSIFIER = "model.embed_tokens.weight", "lm_head.weight", "score.weight"
KEPT_PARTS = 256 << 20
"""Bytes of a bucket's tensors that are kept for their next readers: see `Checkpoint.part`."""
COMPARED = 16 << 20
"""Bytes of the head and of the embeddings that are compared at a time."""
MOST_TOKENIZER = 256 << 20
"""Bytes of one of the tokenizer's files."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
)


class Checkpoint(ModelFolder):
    """A model in Hugging Face's layout. Raises CheckpointError with the file's name when it cannot be read.

    Args:
        weights: False fetches only the config and the tokenizer from the hub.
        roots: as `located` takes them.
    """

    def __init__(self, location: str, weights: bool = True, roots: Sequence[str] | None = None):
        super().__init__(located(location, lambda hub_id: _fetched(hub_id, weights), roots), roots)
        self._parts: OrderedDict[tuple[str, int, int, int], Future[np.ndarray]] = OrderedDict()
        self._lock = Lock()

    def json(self, name: str, required: bool = True, most: int = MOST_JSON) -> Any:
        """A JSON object of the folder; None if it is missing and not required. See `read_json` for `most`."""
        content = self.read_json(name, most)
        if content is None and required:
            raise CheckpointError(f"{self.location}: {name} is missing; expected a Hugging Face model folder")
        if content is not None and not isinstance(content, dict):
            raise CheckpointError(f"{self.location}/{name} is not a JSON object")
        return content

    def image_processor(self) -> dict[str, Any]:
        """What its files say of how images become pixels; empty if they do not."""
        settings = self.json("preprocessor_config.json", required=False)
        return settings or (self.json("processor_config.json", required=False) or {}).get("image_processor") or {}

    @contextmanager
    def tokenizer_folder(self) -> Iterator[str]:
        """A local folder with the tokenizer's files; a remote checkpoint's are copied for as long as it takes."""
        for name in TOKENIZER_FILES:
            if self.has(name) and (size := self._fs.size(self.path(name))) > MOST_TOKENIZER:
                raise CheckpointError(f"{self.location}/{name} has {size} bytes; at most {MOST_TOKENIZER} are read")
        if self.is_local:
            yield self._root
            return
        with tempfile.TemporaryDirectory(prefix="podslice-tokenizer-") as folder:
            for name in TOKENIZER_FILES:
                if self.has(name):
                    self.copy(name, Path(folder, name))
            yield folder

    @cached_property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """All tensors by name, from the headers of all safetensors files.

        The decoder's have the names that they have in a causal language model; towers' are never asked for.
        """
        files = self.shards(INDEX)
        if files is None:
            files = ["model.safetensors"]
            if not self.has(files[0]):
                pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in self.sizes())
                hint = " (pickled weights are not supported: convert them to safetensors)" if pickled else ""
                raise CheckpointError(f"{self.location}: no model.safetensors and no {INDEX}{hint}")
        entries: dict[str, TensorEntry] = {}
        for file in files:
            entries.update(self.header(file, DTYPES | QUANTIZED_DTYPES))
        named = {_canonical_name(name): entry for name, entry in entries.items()}
        towers = sum(not name.startswith(OF_DECODER) for name in named)
        if named.keys() != entries.keys() and towers:
            log.info(
                "%s: %d tensors of its vision tower, or audio's, are not loaded where only text is served",
                self.location,
                towers,
            )
        if HEAD not in named and "embed_tokens.weight" in entries:
            named[HEAD] = named[EMBEDDINGS]  # of a model without a head: nothing depends on it
        if EMBEDDINGS not in named and HEAD in named and from_hf_config(self.json("config.json")).tied_embeddings:
            named[EMBEDDINGS] = named[HEAD]  # which of two names a shared tensor is stored under is its writer's choice
        return named

    def architecture(self, weights: bool = True) -> Architecture:
        """What its config says, and its tensors about the head.

        Args:
            weights: False if its tensors are not to be read: the config alone is believed.

        Raises:
            UnsupportedModel: see `from_hf_config`.
        """
        arch = from_hf_config(self.json("config.json"), self.json("generation_config.json", required=False))
        if weights and arch.tied_embeddings and self.has_own_head():
            log.warning("%s: config.json ties the head to the embeddings, but it has another one: used", self.location)
            return replace(arch, tied_embeddings=False)
        return arch

    def has_own_head(self) -> bool:
        """Whether there is a head that is not the embeddings. Reads both, as far as they are the same."""
        head, embeddings = self.tensors.get(HEAD), self.tensors.get(EMBEDDINGS)
        if head is None or embeddings is None or head == embeddings:
            return False
        if (head.shape, head.dtype) != (embeddings.shape, embeddings.dtype):
            return True
        rows = max(1, COMPARED * head.shape[0] // max(1, head.stop - head.start))
        blocks = (slice(first, first + rows) for first in range(0, head.shape[0], rows))
        return any(self.stored(HEAD, block).tobytes() != self.stored(EMBEDDINGS, block).tobytes() for block in blocks)

    @cached_property
    def format(self) -> QuantizedFormat | None:
        """How its quantized tensors are read; None if it has none.

        Raises:
            UnsupportedModel: they are quantized in a way that cannot be read.
        """
        return format_of(self.json("config.json", required=False) or {})

    def settle(self, config: EngineConfig) -> EngineConfig:
        """The config, with `quantize_weights` set to int8 if the checkpoint is quantized.

        Raises:
            UnsupportedModel: it is quantized in a way that cannot be read.
        """
        if self.format is None or config.quantize_weights == "int8":
            return config
        log.info("weights are kept as int8: %s is quantized", config.model)
        return config.model_copy(update={"quantize_weights": "int8"})

    def read(self, name: str, shape: tuple[int, ...], rows: slice = slice(None)) -> np.ndarray:
        """Rows `rows` of a tensor, in float32 if it is stored quantized; `shape` is the whole tensor's."""
        if name == HEAD and HEAD not in self.tensors and CLASSIFIER in self.tensors:
            return self._classifier(shape, rows)
        read = packed_experts.read(self, name, shape, rows)
        if read is None and self.format is not None:
            read = self.format.read(self, name, shape, rows)
        if read is not None:
            return read
        if name in self.tensors and self.tensors[name].dtype in QUANTIZED_DTYPES.values():
            raise CheckpointError(
                f"{self.location}/{self.tensors[name].file}: tensor {name} is of type {self.tensors[name].dtype}, but "
                "has no scale, or config.json no quantization_config"
            )
        return self.stored(name, rows, shape)

    def _classifier(self, shape: tuple[int, ...], rows: slice) -> np.ndarray:
        """What stands for the head of a classifier: its own rows, and zeros below them."""
        labels = self.tensors[CLASSIFIER].shape[0]
        first, last, _ = rows.indices(shape[0])
        scores = self.stored(CLASSIFIER, slice(first, min(last, labels)), (labels, shape[1]))
        return np.concatenate([scores, np.zeros((last - first - len(scores), shape[1]), scores.dtype)])

    def stored(self, name: str, rows: slice = slice(None), shape: tuple[int, ...] | None = None) -> np.ndarray:
        """Rows of a tensor as the file has them; `shape` is what the whole tensor's must be."""
        try:
            entry = self.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.location}: tensor {name} is missing from the safetensors files") from None
        size = entry.shape or (1,)
        if shape is not None and len(size) == len(shape) + 1:  # all experts' matrices (Gemma 4): one after another
            size = (size[0] * size[1], *size[2:])
        if shape is not None and size != shape:
            raise CheckpointError(
                f"{self.location}/{entry.file}: tensor {name} has shape {entry.shape}, but config.json implies {shape}"
            )
        first, last, _ = rows.indices(size[0])
        row_bytes = math.prod(size[1:]) * entry.dtype.itemsize
        start, stop = entry.start + first * row_bytes, entry.start + last * row_bytes
        return self.array(entry.file, start, stop, entry.dtype, (last - first, *size[1:]))

    def part(self, name: str, rows: slice = slice(None)) -> np.ndarray:
        """Rows of one of the tensors that stand for another, as the file has them.

        Readers of neighbouring rows, which may be other threads, often need the same: it is read from a bucket once.
        """
        if self.is_local:
            return self.stored(name, rows)
        entry = self.tensors[name]
        height = (entry.shape or (1,))[0]
        first, last, _ = rows.indices(height)
        place = name, first, last, (entry.stop - entry.start) * (last - first) // max(height, 1)
        with self._lock:
            mine = place not in self._parts
            found = self._parts.setdefault(place, Future())
            self._parts.move_to_end(place)
            while sum(size for *_, size in self._parts) > KEPT_PARTS and len(self._parts) > 1:
                self._parts.popitem(last=False)
        if mine:
            try:
                found.set_result(self.stored(name, rows))
            except BaseException as error:
                found.set_exception(error)
        return found.result()

    def forget_parts(self) -> None:
        """Free what `part` keeps."""
        self._parts.clear()


def _canonical_name(name: str) -> str:
    prefix = next((prefix for prefix in DECODER_PREFIXES if name.startswith(prefix)), "")
    return DECODER_PREFIXES.get(prefix, "") + name.removeprefix(prefix)


def located(location: str, fetch: Callable[[str], str], roots: Sequence[str] | None = None) -> str:
    """The folder or URL to read; `fetch` gets a hub id's files, and returns the folder that they are in.

    Args:
        roots: the places that others may name. With them, a relative name is never that of a local folder.

    Raises:
        CheckpointError: there is no such folder.
    """
    of_hub = location.removeprefix(HUB)
    if of_hub != location or (roots is not None and is_hub_id(of_hub)):
        if not is_hub_id(of_hub):
            raise CheckpointError(f"{location!r:.200}: expected {HUB}OWNER/NAME")
        return fetch(of_hub)
    if "://" in location:
        return location
    if (local := Path(location).expanduser()).is_dir():
        return str(local.resolve())
    if location.startswith(("/", ".", "~")) or location.count("/") > 1:
        raise CheckpointError(f"{location}: no such folder")
    return fetch(location)


def _fetched(hub_id: str, weights: bool) -> str:
    """The folder of a hub's model, in the hub's own cache."""
    folder = from_hub(hub_id, ["*.json", "tokenizer.model", "*.txt", "*.jinja"])
    if weights:
        # Many repositories hold the weights twice: `consolidated.safetensors` beside the files that the index names.
        found = ModelFolder(folder)
        prepared = ["*.safetensors"] if found.has("manifest.json") else ["model.safetensors"]
        from_hub(hub_id, found.shards(INDEX) or prepared)
    return folder
