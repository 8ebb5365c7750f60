"""Weights are read ahead, in pieces and by several threads: each byte once, and the same weights in the end."""

import re
import threading
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from apps.arrays import reading
from apps.arrays.model_folder import CheckpointError, ModelFolder
from apps.arrays.quantization import quantize, quantize_rows
from apps.arrays.reading import Index, ParamLoader, read_ahead
from apps.llm.engine.model import params
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.weights.checkpoint import Checkpoint
from tests.llm.engine import tiny_models
from tests.llm.engine.weights.test_formats import mxfp4


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_rows_are_quantized_as_on_a_device(dtype: jnp.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.arrays.quantization.BLOCK", 1000)
    weight = np.random.default_rng(0).normal(size=(333, 77)).astype(dtype)
    weight[3], weight[5] = 0, 1e-30
    values, scale = quantize_rows(weight)
    expected = jax.jit(quantize)(jnp.array(weight))
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(scale, expected.scale)


def load(location: str, devices: int, int8: bool) -> params.Params:
    checkpoint = Checkpoint(location)
    arch = from_hf_config(checkpoint.json("config.json"))
    mesh = Mesh(np.array(jax.devices()[:devices]), ("tensor",))
    tree = declare(arch, arch.split(devices))
    return params.load(tree, checkpoint, mesh, jnp.dtype(jnp.bfloat16), int8)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("family", ["llama3", "mixtral", "gpt_oss", "mxfp4"])
def test_a_bucket_is_read_once_by_several_threads(
    family: str, int8: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family == "mxfp4":
        mxfp4(tmp_path)
    else:
        tiny_models.save(tiny_models.make(family), tmp_path)
    bucket = f"memory://read-once/{family}"
    fsspec.filesystem("memory").put(str(tmp_path), bucket, recursive=True)
    expected = load(str(tmp_path), 2, int8)
    monkeypatch.setattr(reading, "PIECE", 2500)
    read: list[tuple[int, int]] = []
    two_at_once, calls = threading.Barrier(2), count()
    array = ModelFolder.array

    def recorded(
        self: ModelFolder, file: str, start: int, stop: int, dtype: np.dtype, shape: tuple[int, ...]
    ) -> np.ndarray:
        read.append((start, stop))
        if next(calls) < 2:
            two_at_once.wait(240)
        return array(self, file, start, stop, dtype, shape)

    monkeypatch.setattr(ModelFolder, "array", recorded)
    jax.tree.map(np.testing.assert_array_equal, expected, load(bucket, 2, int8))
    read.sort()
    assert not [(one, other) for one, other in pairwise(read) if other[0] < one[1]], "bytes were read twice"
    data = sum(entry.stop - entry.start for entry in Checkpoint(bucket).tensors.values())
    assert sum(stop - start for start, stop in read) == data


def one(read: object) -> ParamLoader:
    mesh = Mesh(jax.devices()[:1], ("tensor",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    form = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=sharding)
    return ParamLoader(form, read, whole_rows=True, exchange=True)  # type: ignore[arg-type]


def test_no_more_is_read_ahead_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 64 * 8 * 4
    monkeypatch.setattr(reading, "AHEAD", 3 * size)
    begun = 0

    def readings() -> Iterator[ParamLoader]:
        nonlocal begun
        for number in range(10):
            begun += 1
            yield one(lambda index, number=number: [np.full((64, 8), number, np.float32)[index[0]]])

    for number, ready in enumerate(read_ahead(readings(), local=True)):
        # The fourth is begun in order to know that it does not fit.
        assert begun <= number + 4
        np.testing.assert_array_equal(ready.placed(), np.full((64, 8), number))
    assert begun == 10


def test_an_error_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still to be read is not: a checkpoint of a terabyte would otherwise be read to its end first."""
    monkeypatch.setattr(reading, "PIECE", 8)
    monkeypatch.setattr(reading, "AHEAD", 20 * 64 * 8 * 4)
    done = []

    def read(index: Index) -> list[np.ndarray]:
        done.append(index)
        if len(done) >= 5:
            raise CheckpointError("layer-3.safetensors is cut short")
        return [np.zeros((index[0].stop - index[0].start, 8), np.float32)]

    with pytest.raises(CheckpointError, match="cut short"):
        list(read_ahead((one(read) for _ in range(200)), local=False))
    assert len(done) <= 21 * 64
    assert not [thread for thread in threading.enumerate() if re.match("reading weights", thread.name)]
