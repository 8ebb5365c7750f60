"""Dynamo's own indexer follows the engine's page events: `make test-clients`."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.llm.page_names import page_names, page_root
from apps.llm.placement.choice import CacheChoice, EngineLoad
from apps.llm.text import Engine, SamplingParams
from ray_configs.llm import EngineConfig
from tests.llm.client_libraries.conftest import PROGRAMS, SIZES
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = SIZES["page_size"]
PROMPTS = [[*range(50, 50 + length)] for length in (40, 90)] + [[*range(200, 300)], [7] * 70]


@pytest.fixture
def ports() -> list[str]:
    return [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]


@pytest.fixture
def engine(checkpoint: Path, ports: list[str]) -> Iterator[Engine]:
    events = {"endpoint": ports[0], "replay_endpoint": ports[1]}
    engine = Engine.load(EngineConfig(model=str(checkpoint), max_model_len=256, kv_events=events, **SIZES))
    yield engine
    engine.shutdown()


@pytest.mark.parametrize("late", [False, True], ids=["live", "by replay"])
def test_dynamo_sends_a_prompt_where_we_would(clients: Path, engine: Engine, ports: list[str], late: bool) -> None:
    def ask() -> None:
        for prompt in PROMPTS:
            list(engine.submit(prompt, SamplingParams(max_tokens=1)))

    if late:
        ask()
    command = [str(clients / "python"), str(PROGRAMS / "with_dynamo.py"), *ports, str(PAGE), json.dumps(PROMPTS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as dynamo:
        assert dynamo.stdin is not None and dynamo.stdout is not None
        while "listening" not in (line := dynamo.stdout.readline()):
            assert line, dynamo.communicate()
        time.sleep(2)  # a SUB socket connects in its own time
        if not late:
            ask()
        else:  # whoever finds a gap in the numbers asks for what is missing
            list(engine.submit([9] * 40, SamplingParams(max_tokens=1)))
        out, err = dynamo.communicate("go\n", timeout=120)
    said = json.loads(out.splitlines()[-1])
    assert "Failed to decode" not in out + err

    ours, (news,) = CacheChoice(2, PAGE, max_share=1e9), engine.tokens.cache_news()
    ours.index.apply(0, news)
    root = page_root(engine.capabilities.page_root, b"", ("", ""))
    named = [page_names(root, prompt, PAGE) for prompt in PROMPTS]
    assert said["blocks"] == [ours.index.found(names, 0.0) for names in named]
    idle = {0: EngineLoad(), 1: EngineLoad()}
    chosen = [ours.choose(names, len(prompt), idle, 0.0) + 1 for names, prompt in zip(named, PROMPTS)]
    assert said["chosen"] == chosen == [1] * len(PROMPTS)
