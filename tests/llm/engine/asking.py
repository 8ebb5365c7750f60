"""Short ways to put a request to an engine and to read what comes."""

import time
from typing import Any

from apps.llm.text import Engine, Output, SamplingParams
from apps.llm.text.generation import Generation


def read(generation: Generation) -> list[list[Output]]:
    """The outputs of each of the request's answers."""
    answers: list[list[Output]] = [[] for _ in range(generation.n)]
    for output in generation:
        answers[output.index].append(output)
    assert all(out.finish_reason is None for answer in answers for out in answer[:-1])
    assert all(answer[-1].finish_reason is not None for answer in answers)
    return answers


def ask(engine: Engine, prompt: str | list[int], **params: Any) -> list[Output]:
    return read(engine.submit(prompt, SamplingParams(**({"max_tokens": 24} | params))))[0]


def ids(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def text(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


def settled(engine: Engine) -> None:
    """Nothing runs, nothing waits and no page is held."""
    deadline = time.monotonic() + 240
    while True:
        stats = engine.stats()
        if not (stats.running or stats.waiting or stats.step_running_s) or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)
