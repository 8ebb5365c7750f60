"""With a compilation cache that all hosts share, a slice's first process compiles for all, and the next slice reads.

The oracle is what JAX itself says of each program, in each process.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from apps.arrays.stored_programs.seal import KEY_VARIABLE
from apps.llm.text import Engine, EngineConfig, SamplingParams
from tests.llm.engine import tiny_models
from tests.llm.slice.processes import Processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOSTS = 2
SAYS = {
    "compiled": re.compile(r"Process \d+ compiling and sharing module: (\S+)"),
    "got": re.compile(r"Waiting for module: (\S+) from process"),
    "read": re.compile(r"Persistent compilation cache hit for '([^']+)'"),
}


def started(config: EngineConfig, logs: Path) -> tuple[list[Counter[str]], list[list[int]]]:
    """What each host of a slice does with programs for all of it, and its answers."""
    logs.mkdir()
    place = Processes(HOSTS, 1, logs=logs)
    engine = Engine.load(config, place)
    try:
        params = SamplingParams(temperature=0, max_tokens=8)
        answers = [[token for output in engine.submit(prompt, params) for token in output.token_ids] for prompt in "ab"]
        assert engine.stats().compiles_after_ready == 0
    finally:
        engine.shutdown()
    logs = [log.read_text() for log in place.logs]
    return [Counter({what: len(set(said.findall(log))) for what, said in SAYS.items()}) for log in logs], answers


def test_one_compiles_and_all_others_read(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "0123456789abcdef" * 2)
    monkeypatch.setenv("JAX_DEBUG_LOG_MODULES", "jax._src.compiler")
    monkeypatch.setenv("JAX_LOGGING_LEVEL", "DEBUG")
    cache = tmp_path / "bucket"
    config = EngineConfig(**tiny_models.SMALL | {"model": str(llama), "compile_cache": f"file://{cache}"})
    (first, second), answers = started(config, tmp_path / "first")
    assert first["compiled"] > 5 and not second["compiled"]
    assert second["got"] + second["read"] >= first["compiled"] and second["got"] and not first["got"]
    hosts, again = started(config, tmp_path / "again")
    assert again == answers
    for host in hosts:
        assert host["read"] >= first["compiled"] and not host["compiled"] and not host["got"]
    monkeypatch.setenv(KEY_VARIABLE, "another" * 5)
    (first, second), answers = started(config, tmp_path / "other")
    assert first["compiled"] > 5 and not second["compiled"], "what another sealed is compiled again"


def test_hosts_that_share_a_folder_read_what_the_first_compiled(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each compiles at the first start: another host's disk may lack what this one's has."""
    monkeypatch.setenv("JAX_DEBUG_LOG_MODULES", "jax._src.compiler")
    monkeypatch.setenv("JAX_LOGGING_LEVEL", "DEBUG")
    config = EngineConfig(**tiny_models.SMALL | {"model": str(llama), "compile_cache": str(tmp_path / "cache")})
    _, answers = started(config, tmp_path / "first")
    hosts, again = started(config, tmp_path / "again")
    assert again == answers
    for host, log in zip(hosts, sorted((tmp_path / "again").iterdir()), strict=True):
        assert host["read"] > 5 and "COMPILATION CACHE MISS" not in log.read_text()
