"""A preparation that is killed at any moment goes on where it was, and ends in the same bytes."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apps.jobs.preparation import PrepareArguments, prepare
from apps.llm.engine.weights.checkpoint import CheckpointError
from apps.llm.engine.weights.prepared import MANIFEST, UNFINISHED, open_checkpoint
from tests.llm.engine import tiny_models

LAYERS = 24


@pytest.fixture(scope="module")
def many_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "many-layers"
    tiny_models.save(tiny_models.make("llama3", num_hidden_layers=LAYERS), folder)
    tiny_models.save_tokenizer(folder)
    return folder


def started(model: Path, output: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "apps.jobs.prepare", str(model), str(output), "--quantize-weights", "int8"]
    return subprocess.Popen(command, env=tiny_models.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def written(output: Path) -> float:
    """A moment that changes with every rename."""
    try:
        return output.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(15, marks=pytest.mark.chaos)])
@pytest.mark.timeout(600)
def test_killed_again_and_again(kills: int, many_layers: Path, tmp_path: Path) -> None:
    undisturbed, output, draw = tmp_path / "undisturbed", tmp_path / "output", random.Random(kills)
    prepare(PrepareArguments(str(many_layers), str(undisturbed), quantize_weights="int8"))
    killed, unfinished = 0, 0
    while killed < kills:
        process = started(many_layers, output)
        # After so many of its writes, and then anywhere within the next.
        for _ in range(draw.randint(0, 2 * LAYERS // kills + 1)):
            before = written(output)
            while written(output) == before and process.poll() is None:
                time.sleep(0.0005)
        time.sleep(draw.uniform(0, 0.005))
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:  # it was quicker
            break
        killed += 1
        if output.is_dir() and (output / UNFINISHED).exists() and not (output / MANIFEST).exists():
            unfinished += 1
            with pytest.raises(CheckpointError, match="is not fully prepared"):
                open_checkpoint(str(output))
            recorded = json.loads((output / UNFINISHED).read_text())["done"]
            assert {name: (output / name).stat().st_size for name in recorded} == {
                name: file["size"] for name, file in recorded.items()
            }
    assert unfinished > 0
    process = started(many_layers, output)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said.decode()
    assert b"written again" not in said, "what was recorded was whole"
    assert contents(output) == contents(undisturbed)
