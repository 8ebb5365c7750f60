"""The second start with the same compile cache compiles nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.llm.engine import tiny_models

SCRIPT = """
import json, sys
from collections import Counter
import jax
from apps.llm.text import Engine, EngineConfig, SamplingParams

events = Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.rsplit("/", 1)[-1]]))
engine = Engine.load(EngineConfig(**json.loads(sys.argv[1])))
text = engine.generate(["the quick"], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
extra = engine.generate(["x"], SamplingParams(max_tokens=2, logit_bias={5: 1.0}, presence_penalty=1.0, min_tokens=2))
after = engine.stats().compiles_after_ready
engine.shutdown()
print(json.dumps([events["cache_hits"], events["cache_misses"], after, text]))
"""


def start(settings: dict) -> list:
    command = [sys.executable, "-c", SCRIPT, json.dumps(settings)]
    found = subprocess.run(command, env=tiny_models.environment(), capture_output=True, text=True, timeout=200)
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
def test_second_start_compiles_nothing(llama: Path, tmp_path: Path) -> None:
    settings = tiny_models.SMALL | {"model": str(llama), "compile_cache": str(tmp_path), "quantize_kv_cache": "int8"}
    hits, misses, after_ready, text = start(settings)
    assert misses >= 3 and after_ready == 0
    again, missed, after_ready, same = start(settings)
    assert (missed, after_ready, same) == (0, 0, text)
    assert again == hits + misses
