"""Prepares a model: its weights file by file, then its own config and tokenizer files, then the manifest.

At most one parameter is in memory at a time. The job can be killed at any moment: files appear whole or not at all,
and the same command resumes (see `output`). Existing files are verified against their checksums; on a complete output
the command rewrites only damaged ones.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

import jax.numpy as jnp

from apps.arrays.layout import Devices
from apps.arrays.model_folder import CheckpointError
from apps.jobs.preparation.output import PreparationOutput, PreparationRefused
from apps.jobs.preparation.weights import StoredWeights
from apps.llm.engine.execute.layout_choice import possible
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.weights.checkpoint import TOKENIZER_FILES, Checkpoint
from apps.llm.engine.weights.prepared import (
    FORMAT,
    MANIFEST,
    PreparationRequest,
    Prepared,
    PreparedManifest,
    StoredFile,
    open_checkpoint,
    size_problem,
)
from apps.serving.progress import bar
from ray_configs.tpu import TpuSlice

OWN_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES)
"""Files that are copied from the model unchanged, so that the output is a complete model."""
DEVICES_PER_CHIP = {"v3": 2, "7x": 2}
"""JAX devices per chip where it is not one: a device for each TensorCore."""


@dataclass(frozen=True)
class PrepareArguments:
    """Arguments of the command."""

    model: str
    output: str
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    quantize_weights: Literal["none", "int8"] = "none"
    slice: TpuSlice | None = None
    tensor_parallel: int | None = None


@dataclass
class Summary:
    """What a preparation did."""

    files: int
    nbytes: int
    kept: int
    """Files that existed already, intact."""
    renewed: list[str] = field(default_factory=list)
    """Files that existed already, but damaged."""


def prepare(wanted: PrepareArguments) -> Summary:
    """Write the output, or the files that it lacks.

    Raises:
        PreparationRefused: an argument is wrong, or the output holds something else; nothing was written.
        Busy: another process is preparing there.
        CheckpointError: a file of the model is missing or damaged.
        OSError: the disk is full, the bucket cannot be written.
    """
    source, arch = _open(wanted.model)
    request = PreparationRequest(
        source=wanted.model,
        source_digest=_digest(source),
        dtype=wanted.dtype,
        quantize_weights=wanted.quantize_weights,
        tensor_parallel=_blocks(wanted, arch),
    )
    weights = StoredWeights(
        source, arch, jnp.dtype(wanted.dtype), wanted.quantize_weights == "int8", request.tensor_parallel
    )
    own = {name: content for name in OWN_FILES if (content := source.file(name)) is not None}
    sizes = {file: weights.size(file) for file in weights.files} | {name: len(own[name]) for name in own}
    output = PreparationOutput(wanted.output)
    if output.is_at(source.location):
        raise PreparationRefused("OUTPUT is MODEL itself; choose another folder")
    with output.locked():
        recorded = output.begin(request, MANIFEST)
        done = output.whole(recorded)
        summary = Summary(len(sizes), sum(sizes.values()), len(done), sorted(recorded.keys() - done.keys()))
        missing = {name: size for name, size in sizes.items() if name not in done}
        output.need_space(sum(missing.values()), max(missing.values(), default=0))
        with bar(f"preparing {wanted.output}", len(missing)) as advance:
            for name in missing:
                with output.writing(name) as sink:
                    for data in weights.content(name) if name in weights.files else [own[name]]:
                        sink.write(data)
                done[name] = StoredFile(size=sink.size, sha256=sink.sha256)
                output.record(request, done)
                advance()
        manifest = PreparedManifest(
            **request.model_dump(), tensors=weights.tensors, files={name: done[name] for name in sorted(done)}
        )
        output.finish(MANIFEST, manifest.json_bytes())
    return summary


def verify(location: str) -> list[str]:
    """Read all files of a prepared model; returns what is wrong with them, empty if nothing is.

    Raises:
        CheckpointError: it is not a prepared model, or is not finished.
    """
    found = open_checkpoint(location)
    if not isinstance(found, Prepared):
        raise CheckpointError(f"{location} is not a prepared model: it has no {MANIFEST} that says so")
    files, sizes = found.manifest.files, found.sizes()
    by_size = {name: size_problem(name, stored, sizes.get(name)) for name, stored in files.items()}
    problems = [problem for problem in by_size.values() if problem]
    rest = {name: stored for name, stored in files.items() if not by_size[name]}
    whole = PreparationOutput(location).whole(rest)
    return problems + [f"{name} is damaged: its SHA-256 does not match" for name in rest if name not in whole]


def _open(model: str) -> tuple[Checkpoint, Architecture]:
    try:
        source = Checkpoint(model)
        manifest = source.json(MANIFEST, required=False)
        if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
            raise PreparationRefused(f"MODEL: {model} is prepared already; give the model that it was made from")
        arch = source.architecture()
        _ = source.tensors, source.format
    except (CheckpointError, UnsupportedModel) as error:
        raise PreparationRefused(f"MODEL: {error}") from error
    return source, arch


def _digest(source: Checkpoint) -> str:
    """Digest of the config and the tensors' headers: equal for copies of a model, changed by sizes, names or types."""
    tensors = {
        name: (entry.file, entry.dtype.name, entry.shape, entry.start, entry.stop)
        for name, entry in sorted(source.tensors.items())
    }
    content = (source.file("config.json") or b"") + json.dumps(tensors).encode()
    return hashlib.sha256(content).hexdigest()


def _blocks(wanted: PrepareArguments, arch: Architecture) -> int:
    """The `tensor_parallel` that the weights are laid out for."""
    try:
        if wanted.slice is None:
            blocks = wanted.tensor_parallel or 1
            arch.split(blocks)
            return blocks
        per_chip = DEVICES_PER_CHIP.get(wanted.slice.generation, 1)
        devices = Devices(wanted.slice.chips * per_chip, wanted.slice.hosts)
        return max((layout.tensor for layout in possible(arch, devices)), default=1)
    except ValueError as error:
        raise PreparationRefused(f"--tensor-parallel: {error}") from error
