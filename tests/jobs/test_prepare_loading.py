"""What is loaded from a prepared model is what the engine makes of the original, bit by bit, on any mesh."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.llm.engine import tiny_models

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tiny_llama: Path, tiny_gemma: Path, tiny_gemma4: Path) -> dict:
    script = Path(__file__).with_name("prepared_load.py")
    process = subprocess.run(
        [sys.executable, str(script), str(tiny_llama), str(tiny_gemma), str(tiny_gemma4)],
        env=tiny_models.environment(XLA_FLAGS=tiny_models.xla_flags(2)),
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


def test_every_parameter_is_the_same(found: dict) -> None:
    assert len(found["params"]) == 3 * (3 * 2 + 2)
    assert {case: names for case, names in found["params"].items() if names} == {}


def test_logits_are_the_same(found: dict) -> None:
    assert list(found["logits"].values()) == [True] * 3


def test_devices_read_each_byte_once(found: dict) -> None:
    assert len(found["more than once"]) == 3 * 5
    assert {case: names for case, names in found["more than once"].items() if names} == {}
