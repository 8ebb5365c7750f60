"""The prepare command: what it writes, what it refuses, how it goes on, and how damage is found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pytest
from safetensors import safe_open
from typer.testing import CliRunner, Result

from apps.jobs.prepare import app
from apps.llm.engine.weights.checkpoint import Checkpoint, CheckpointError
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.prepared import MANIFEST, UNFINISHED, Prepared, open_checkpoint
from apps.llm.engine.weights.prepared_shards import PreparedShards, stored_params
from apps.llm.text import EngineConfig
from apps.llm.text.model_files import tokenizer_of
from apps.plan.llm import architectures
from apps.serving.files import locked
from tests.llm.engine import tiny_models


def prepare(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"JAX_PLATFORMS": "cpu"})


@pytest.fixture(scope="module")
def prepared(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """int8, for two devices. Not to be changed: `copy` is."""
    output = tmp_path_factory.mktemp("prepared") / "llama"
    assert prepare(tiny_llama, output, "--quantize-weights", "int8", "--tensor-parallel", 2).exit_code == 0
    return output


@pytest.fixture
def copy(prepared: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in prepared.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_files_are_whole_safetensors_and_the_manifest_says_where_each_tensor_lies(prepared: Path) -> None:
    manifest = json.loads((prepared / MANIFEST).read_text())
    assert (manifest["dtype"], manifest["quantize_weights"], manifest["tensor_parallel"]) == ("bfloat16", "int8", 2)
    assert sorted([MANIFEST, *manifest["files"]]) == sorted(file.name for file in prepared.iterdir())
    listed = set()
    for name in manifest["files"]:
        if name.endswith(".safetensors"):
            with safe_open(prepared / name, "numpy") as file:
                for tensor in file.keys():  # noqa: SIM118 (it is no dict)
                    found, said = file.get_slice(tensor), manifest["tensors"][tensor]
                    assert (found.get_dtype(), list(found.get_shape()), said["file"]) == (
                        said["dtype"],
                        said["shape"],
                        name,
                    )
                    assert said["start"] % 64 == 0
                    listed.add(tensor)
    assert listed == set(manifest["tensors"])
    assert manifest["tensors"]["layers.3.down"]["split"] == "columns"
    assert manifest["tensors"]["layers.3.down"]["shape"] == [2 * 64, 96 // 2]
    assert "embed.scale" not in listed and "lm_head.scale" in listed


def test_the_output_settles_the_quantization(prepared: Path) -> None:
    config = EngineConfig(model=str(prepared))
    model = Model.open(config)
    assert model.settle(config).quantize_weights == "int8"
    assert tokenizer_of(model).encode("the quick") == tokenizer_of(model).encode("the quick")
    with pytest.raises(ValueError, match=r"dtype is float32, but .* was prepared with dtype bfloat16: set dtype to"):
        model.settle(EngineConfig(model=str(prepared), dtype="float32"))
    random = EngineConfig(model=str(prepared), random_weights=True, dtype="float32")
    assert Model.open(random).settle(random) == random


def test_a_plan_of_the_output_knows_that_it_is_int8(prepared: Path, tiny_llama: Path) -> None:
    planned = architectures.find(EngineConfig(model=str(prepared)))
    assert planned.config.quantize_weights == "int8" and "as it was prepared" in planned.source
    original = architectures.find(EngineConfig(model=str(tiny_llama)))
    assert original.config.quantize_weights == "none" and original.arch.num_params == planned.arch.num_params


def test_preparing_again_checks_and_mends(tiny_llama: Path, prepared: Path, copy: Path) -> None:
    options = "--quantize-weights", "int8", "--tensor-parallel", 2
    again = prepare(tiny_llama, copy, *options)
    assert again.exit_code == 0 and "written again" not in again.output, again.output
    with (copy / "layer-00002.safetensors").open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))
    found = prepare("--verify", copy)
    assert found.exit_code == 1
    assert "layer-00002.safetensors is damaged: its SHA-256 does not match" in found.output
    mended = prepare(tiny_llama, copy, *options)
    assert mended.exit_code == 0 and "rewritten because they were damaged: layer-00002.safetensors" in mended.output
    assert contents(copy) == contents(prepared)
    assert prepare("--verify", copy).exit_code == 0


def test_loading_names_a_file_that_is_cut_short_or_gone(copy: Path) -> None:
    os.truncate(copy / "layer-00001.safetensors", 5000)
    with pytest.raises(CheckpointError, match=r"layer-00001.safetensors has 5000 bytes where manifest.json says \d+"):
        _ = open_checkpoint(str(copy)).tensors
    (copy / "layer-00001.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"layer-00001.safetensors is missing"):
        _ = open_checkpoint(str(copy)).tensors
    assert "layer-00001.safetensors is missing" in prepare("--verify", copy).output


def test_newer_and_damaged_manifests_are_refused(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps(manifest | {"version": 2, "more": 1}))
    with pytest.raises(CheckpointError, match=r"prepared by a newer Podslice \(format 2; this one reads 1\)"):
        open_checkpoint(str(copy))
    (copy / MANIFEST).write_text(json.dumps(manifest | {"tensor_parallel": "many"}))
    with pytest.raises(CheckpointError, match=r"manifest.json is damaged: tensor_parallel"):
        open_checkpoint(str(copy))


def test_a_config_that_was_changed_later_does_not_load_something_else(copy: Path) -> None:
    sizes = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(sizes | {"intermediate_size": 192}))
    checkpoint = open_checkpoint(str(copy))
    with pytest.raises(CheckpointError, match=r"tensor layers.0.gate_up has shape \(192, 64\), but config.json"):
        stored("layers.0.gate_up", checkpoint, (slice(None), slice(None)))


def stored(name: str, checkpoint: Checkpoint, index: tuple[slice, ...]) -> np.ndarray:
    assert isinstance(checkpoint, Prepared)
    params = stored_params(checkpoint.architecture(), checkpoint.manifest.tensor_parallel)
    return PreparedShards(checkpoint).values(name, params[name], index)


WRONG = {
    "no model": (["/no/such/model", "{tmp}/out"], "MODEL: /no/such/model: no such folder"),
    "one argument": (["{model}"], "OUTPUT is missing"),
    "an impossible slice": (["{model}", "{tmp}/out", "--slice", "v5e:9x9"], "--slice: v5e has no topology '9x9'"),
    "heads that do not split": (
        ["{model}", "{tmp}/out", "--tensor-parallel", "3"],
        "--tensor-parallel: tensor_parallel 3 cannot split",
    ),
    "both": (["{model}", "{tmp}/out", "--tensor-parallel", "2", "--slice", "v5e:2x2"], "give one of them"),
    "itself": (["{model}", "{model}"], "OUTPUT is MODEL itself"),
    "prepared already": (["{prepared}", "{tmp}/out"], "is prepared already"),
    "something else there": (["{model}", "{prepared}"], "holds .* not .* choose another folder, or delete it"),
    "foreign files": (["{model}", "{tmp}/foreign"], "is not empty (photo.jpg is there)"),
    "verify and model": (["--verify", "{prepared}", "{model}"], "--verify takes only the folder"),
    "verify a model": (["--verify", "{model}"], "is not a prepared model"),
    "an unknown dtype": (["{model}", "{tmp}/out", "--dtype", "float16"], "Invalid value for '--dtype'"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments(kind: str, tiny_llama: Path, prepared: Path, tmp_path: Path) -> None:
    arguments, said = WRONG[kind]
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "photo.jpg").write_bytes(b"x")
    places = {"model": tiny_llama, "prepared": prepared, "tmp": tmp_path}
    found = prepare(*(argument.format(**places) for argument in arguments))
    assert found.exit_code == 2, found.output
    for part in said.split(" .* "):
        assert part in found.output.replace("\n", " ")


def test_a_slice_means_its_devices(tiny_llama: Path, tmp_path: Path) -> None:
    """Four heads: four of a v5e slice's eight chips are the most that can share a layer."""
    assert prepare(tiny_llama, tmp_path / "out", "--slice", "v5e:2x4:8t").exit_code == 0
    assert open_checkpoint(str(tmp_path / "out")).manifest.tensor_parallel == 4


def test_only_one_at_a_time(tiny_llama: Path, tmp_path: Path) -> None:
    with locked(str(tmp_path)):
        found = prepare(tiny_llama, tmp_path)
    assert found.exit_code == 1 and "another process (process" in found.output
    assert list(tmp_path.iterdir()) == []
    assert prepare(tiny_llama, tmp_path).exit_code == 0


def test_a_disk_that_is_full_in_the_middle(tiny_llama: Path, tmp_path: Path) -> None:
    """The kernel's limit on a file's size stands in for the disk's: the same error on the same path."""
    output = tmp_path / "out"
    limited = ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh"]  # blocks of 512 bytes
    command = [*limited, sys.executable, "-m", "apps.jobs.prepare", str(tiny_llama), str(output)]
    full = subprocess.run(command, env=tiny_models.environment(), capture_output=True, text=True)
    assert full.returncode == 1, full.stderr
    assert "cannot write" in full.stderr and "File too large. Make room and run the same command again" in full.stderr
    assert not [file.name for file in output.iterdir() if "partial" in file.name], "a full disk needs the room"
    with pytest.raises(CheckpointError, match=r"is not fully prepared; .*prepare /.* --tensor-parallel 1"):
        open_checkpoint(str(output))
    more = prepare(tiny_llama, output)
    assert more.exit_code == 0 and "2 existed already" in more.output
    assert not (output / UNFINISHED).exists()


def test_a_bucket(tiny_llama: Path, prepared: Path) -> None:
    """Any fsspec URL, to and from: the same files."""
    memory = fsspec.filesystem("memory")
    memory.put(str(tiny_llama), "/models/llama", recursive=True)
    url = "memory://prepared/llama"
    options = "--quantize-weights", "int8", "--tensor-parallel", 2
    found = prepare("memory://models/llama", url, *options)
    assert found.exit_code == 0, found.output
    expected = contents(prepared)
    for name in expected:
        if name != MANIFEST:  # which names the source
            assert memory.cat_file(f"/prepared/llama/{name}") == expected[name], name
    assert {Path(path).name for path in memory.ls("/prepared/llama", detail=False)} == set(expected)
    checkpoint = open_checkpoint(url)
    index = slice(0, 64), slice(0, 48)
    down = stored("layers.0.down", checkpoint, index)
    assert (down == stored("layers.0.down", open_checkpoint(str(prepared)), index)).all()
    memory.pipe_file("/prepared/llama/head.safetensors", b"x" * len(expected["head.safetensors"]))
    assert "head.safetensors is damaged" in prepare("--verify", url).output
    assert "head.safetensors" in prepare("memory://models/llama", url, *options).output
    assert memory.cat_file("/prepared/llama/head.safetensors") == expected["head.safetensors"]
    memory.rm("/prepared", recursive=True)
    memory.rm("/models/llama", recursive=True)
