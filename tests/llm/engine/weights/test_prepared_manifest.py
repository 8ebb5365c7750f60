"""A prepared checkpoint's manifest that says what its files do not have. The oracle is the file's own size."""

import json
from pathlib import Path
from typing import Any

import pytest

from apps.arrays.model_folder import CheckpointError
from apps.llm.engine.weights.prepared import FORMAT, MANIFEST, open_checkpoint

WEIGHTS = "layer-00000.safetensors"


def write(folder: Path, **changes: Any) -> None:
    tensor = {"file": WEIGHTS, "dtype": "F32", "shape": [4, 4], "start": 0, "stop": 64, "split": "rows"} | changes
    request = {"source": "s", "source_digest": "d", "dtype": "float32", "quantize_weights": "none"}
    files = {WEIGHTS: {"size": 64, "sha256": "0"}}
    manifest = {"format": FORMAT, "tensor_parallel": 1, "tensors": {"a": tensor}, "files": files} | request
    (folder / WEIGHTS).write_bytes(bytes(64))
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": 128, "shape": [4, 8]},
        {"start": -64, "stop": 0},
        {"dtype": "F33"},
        {"shape": [-4, -4]},
        {"shape": [4, 5]},
        {"stop": 1 << 63, "shape": [1 << 61]},
        {"file": "../x"},
        {"file": "/etc/passwd"},
    ],
)
def test_a_tensor_that_is_not_in_its_file(changes: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path)
    assert open_checkpoint(str(tmp_path)).tensors.keys() == {"a"}
    write(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=MANIFEST):
        dict(open_checkpoint(str(tmp_path)).tensors)
