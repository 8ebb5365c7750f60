"""lm-eval's own command against the server, on local tasks: its numbers are transformers', its answers the server's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import transformers

from tests.llm.client_libraries import decisive
from tests.llm.client_libraries.conftest import NAME
from tests.llm.engine import tiny_models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
QUESTIONS = [
    {"question": "The day after Monday is", "choices": ["Tuesday", "Sunday", "Friday"], "answer": 0},
    {"question": "A week has", "choices": ["nine days", "seven days", "five days"], "answer": 1},
    {"question": "The quick brown fox jumps over", "choices": ["the moon", "a fence", "the lazy dog"], "answer": 2},
]
CHOOSE: dict[str, Any] = {
    "task": "days_choose",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}],
}
WRITE: dict[str, Any] = {
    "task": "days_write",
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{choices[answer]}}",
    "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False},
    "metric_list": [{"metric": "exact_match"}],
}
GREEDY = {"model": NAME, "temperature": 0, "max_tokens": 12, "stop": ["\n\n"]}


@pytest.fixture
def samples(tmp_path: Path, run: Callable[..., str]) -> Callable[..., dict[str, list[Any]]]:
    """Runs tasks on a kind of model; for each, what lm-eval noted of each question."""

    def samples(kind: str, tasks: list[dict[str, Any]], *more: str, **model: Any) -> dict[str, list[Any]]:
        (tmp_path / "days.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
        source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "days.jsonl")}}}
        for task in tasks:  # JSON is YAML
            (tmp_path / f"{task['task']}.yaml").write_text(json.dumps(source | task | {"test_split": "test"}))
        arguments = ",".join(f"{name}={value}" for name, value in model.items())
        names = ",".join(task["task"] for task in tasks)
        where = ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "told"), "--log_samples"]
        run("lm_eval", "--model", kind, "--tasks", names, "--model_args", arguments, *where, *more)
        return {
            task["task"]: sorted(
                (
                    json.loads(line)
                    for file in (tmp_path / "told").rglob(f"samples_{task['task']}_*.jsonl")
                    for line in file.read_text().splitlines()
                ),
                key=lambda sample: sample["doc_id"],
            )
            for task in tasks
        }

    return samples


def choices(url: str, **body: Any) -> Any:
    return httpx.post(url, json=GREEDY | body, timeout=120).json()["choices"]


def test_local_completions(samples: Any, checkpoint: Path, served_url: str) -> None:
    url = f"{served_url}/v1/completions"
    server = {"model": NAME, "base_url": url, "tokenizer": checkpoint}
    found = samples("local-completions", [CHOOSE, WRITE], "--batch_size", "4", **server)
    chosen, written = found["days_choose"], found["days_write"]
    assert len(chosen) == len(written) == len(QUESTIONS)
    tokenizer, model = transformers.PreTrainedTokenizerFast.from_pretrained(checkpoint), decisive.make(checkpoint)

    def encode(text: str) -> list[int]:  # without <s>, as lm-eval does
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    for sample, asked in zip(chosen, QUESTIONS, strict=True):
        context, scores = len(encode(asked["question"])), []
        for choice, ((told, greedy),) in zip(asked["choices"], sample["resps"], strict=True):
            ids = encode(f"{asked['question']} {choice}")
            each = tiny_models.logits(model, ids).log_softmax(-1)
            scores.append(sum(float(each[i - 1, ids[i]]) for i in range(context, len(ids))))
            assert float(told) == pytest.approx(scores[-1], abs=1e-3) and str(greedy) == "False"
        assert sample["acc"] == float(max(range(3), key=scores.__getitem__) == asked["answer"])
    for sample, asked in zip(written, QUESTIONS, strict=True):
        (choice,) = choices(url, prompt=encode(asked["question"]))
        assert sample["resps"] == [[choice["text"]]] and choice["text"]


def test_local_chat_completions(samples: Any, served_url: str) -> None:
    url = f"{served_url}/v1/chat/completions"
    found = samples("local-chat-completions", [WRITE], "--apply_chat_template", model=NAME, base_url=url)["days_write"]
    assert len(found) == len(QUESTIONS)
    for sample, asked in zip(found, QUESTIONS, strict=True):
        (choice,) = choices(url, messages=[{"role": "user", "content": asked["question"]}])
        assert sample["resps"] == [[choice["message"]["content"]]] and choice["message"]["content"]
