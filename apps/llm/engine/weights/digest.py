"""A digest of a model's weights and config, the same wherever the same files are."""

import hashlib
from pathlib import Path

from apps.llm.engine.weights.checkpoint import INDEX, Checkpoint
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.prepared import MANIFEST, Prepared

SAMPLES, SAMPLE = 256, 4096
"""Pieces of a file of weights that are read, and bytes of each: to read all would take as long as loading them."""


def model_digest(model: Model) -> bytes:
    """16 bytes. Two fine-tunes of one model have different ones: training changes every piece of the files.

    A prepared model has another digest than the one that it was prepared from.
    """
    found = hashlib.blake2b(repr(model.arch).encode(), digest_size=16)
    if model.checkpoint is None or model.random_weights:  # drawn from names and shapes
        return found.digest()
    parts = _manifest(model.checkpoint) if isinstance(model.checkpoint, Prepared) else _files(model.checkpoint)
    return _with(found, parts)


def files_digest(checkpoint: Checkpoint, weights: bool = True) -> bytes:
    """16 bytes, as `model_digest`, of a model whose family need not be known: of its files alone.

    Args:
        weights: False if they are drawn, and not those of the files.
    """
    parts = _files(checkpoint) if weights else [checkpoint.file("config.json") or b""]
    return _with(hashlib.blake2b(digest_size=16), parts)


def _with(found: "hashlib.blake2b", parts: list[bytes]) -> bytes:
    """The digest, with each part and its length."""
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


def _manifest(checkpoint: Prepared) -> list[bytes]:
    return [checkpoint.file(MANIFEST) or b""]


def _files(checkpoint: Checkpoint) -> list[bytes]:
    sizes, parts = checkpoint.sizes(), [checkpoint.file("config.json") or b""]
    for name in checkpoint.shards(INDEX) or ["model.safetensors"]:
        size = sizes.get(name)
        parts += [name.encode(), str(size).encode()]
        if size is None:  # a slice's hosts read the weights, not this process; the hub's folders are named by commit
            parts.append(Path(checkpoint.location).name.encode())
        elif checkpoint.is_local:
            parts += _sampled(Path(checkpoint.path(name)), size)
        else:
            parts.append(checkpoint.version(name))
    return parts


def _sampled(path: Path, size: int) -> list[bytes]:
    """The whole of a small file, or pieces at equal distances, the first and the last bytes among them."""
    if size <= SAMPLES * SAMPLE:
        return [path.read_bytes()]
    with path.open("rb") as file:
        parts = []
        for i in range(SAMPLES):
            file.seek((size - SAMPLE) * i // (SAMPLES - 1))
            parts.append(file.read(SAMPLE))
    return parts
