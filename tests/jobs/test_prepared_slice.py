"""Two hosts in lockstep load what was prepared for them: neither traces nor compiles, by JAX's own log."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from apps.arrays.stored_programs import seal
from apps.llm.text import Engine, EngineConfig, SamplingParams
from ray_configs.tpu import TpuSlice
from tests.llm.engine import tiny_models
from tests.llm.slice.processes import Processes

SLICE = TpuSlice("v5e", "2x4", "4t")
SIZES = tiny_models.SMALL | {"page_size": 16, "max_batch_size": 2, "max_step_tokens": 16}
SERVICE = """
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(name="tiny", applications=(Application(config=LLMConfig(**{fields!r})),))
"""
COMPILING = "Finished tracing", "Finished XLA compilation", "Compiling jit"


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"data_parallel": 2, "tensor_parallel": 4}])
def test_two_hosts_start_without_compiling(
    layout: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    original, to = tmp_path / "model", tmp_path / "to"
    tiny_models.save(tiny_models.make("llama3", num_attention_heads=8, num_key_value_heads=2), original)
    tiny_models.save_tokenizer(original)
    monkeypatch.setenv(seal.KEY_VARIABLE, "a key of the tests, long enough")
    fields = SIZES | layout | {"model": str(original), "slice": str(SLICE)}
    (tmp_path / "tiny.py").write_text(SERVICE.format(fields=fields))
    done = subprocess.run(
        [sys.executable, "-m", "apps.jobs.prepare", str(tmp_path / "tiny.py"), "--to", str(to), "--emulated"],
        env=tiny_models.environment(XLA_FLAGS="--xla_backend_optimization_level=0"),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    (manifest,) = (json.loads(path.read_text()) for path in to.glob("programs/*/manifest.json"))
    assert manifest["slice"] == str(SLICE) and "on 2 host(s)" in manifest["made_for"]["devices"]

    prompt, params = [5, 6, 7, 8], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    expected = tiny_models.greedy(original, prompt, 8)
    config = EngineConfig(**SIZES | layout | {"model": str(to), "compile_cache": None})
    monkeypatch.setenv("JAX_LOG_COMPILES", "1")
    capfd.readouterr()
    for start in ("first, with a trial", "second"):
        engine = Engine.load(config, Processes(2, SLICE.chips_per_host), SLICE)
        try:
            tokens = [token for output in engine.submit(prompt, params) for token in output.token_ids]
            assert tokens == expected and engine.stats().programs_compiled == 0
        finally:
            engine.shutdown()
        said = capfd.readouterr().err
        assert not [line for line in said.splitlines() if any(word in line for word in COMPILING)], start
    assert len(list(to.glob("programs/*/tried.json"))) == 1
