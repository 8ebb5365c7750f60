"""Scores answers to questions in phrasings that no training text has (`cases`).

`python -m tools.demo_models.language.evaluate` scores the shipped model with the engine that serves it, in any of
its number formats. The model is a function from prompts to texts, so anything else can be scored the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from ray_configs.llm import DEMO_MODEL
from tools.demo_models.language.cases import Case, Prompt, cases, same_words
from tools.demo_models.language.chats import say
from tools.demo_models.language.tool_cases import tool_cases

Answer = Callable[[list[Prompt]], list[str]]

PROMISED = {
    "How many days are in a week?": "There are seven days in a week.",
    "What are the top 5 programming languages": (
        "Five popular programming languages are Python, JavaScript, Java, C++ and Go."
    ),
}
"""The prompts of the tutorials, which users try first; these phrasings are in the training text."""

MAX_TOKENS = 96
FORMATS = {
    "bfloat16": {},
    "int8 weights": {"quantize_weights": "int8"},
    "int8 weights and KV cache": {"quantize_weights": "int8", "quantize_kv_cache": "int8"},
}
"""The number formats that the card reports, as options of the engine."""


@dataclass(frozen=True)
class Report:
    """Every case with its answer, and the answers to the promised prompts, raw and as a chat."""

    answers: tuple[tuple[Case, str], ...]
    tools: tuple[tuple[Case, str], ...]  # of those that offer tools, which have a score of their own
    promised: tuple[tuple[str, str, str], ...]  # (prompt, raw answer, chat answer)
    beyond: tuple[tuple[Case, str], ...]  # of sums that nothing taught; not in the score

    @property
    def score(self) -> float:
        """The fraction of all cases answered rightly."""
        return sum(case.right(text) for case, text in self.answers) / len(self.answers)

    def summary(self) -> dict:
        """The report as plain data, for JSON: scores, each category's, and every wrong answer."""
        wrong = [
            {
                "asked": case.prompt if isinstance(case.prompt, str) else case.prompt[-1]["content"],
                "expected": case.expected,
                "answer": text,
            }
            for case, text in (*self.answers, *self.tools)
            if not case.right(text)
        ]
        exact = sum(same_words(text, case.expected) for case, text in self.answers)
        return {
            "score": round(self.score, 4),
            "cases": len(self.answers),
            "word_for_word": round(exact / len(self.answers), 4),
            "categories": _by_category(self.answers),
            "tools": _by_category(self.tools),
            "sums_beyond": {"right": sum(case.right(text) for case, text in self.beyond), "cases": len(self.beyond)},
            "promised": [{"prompt": prompt, "raw": raw, "chat": chat} for prompt, raw, chat in self.promised],
            "wrong": wrong,
        }

    def __str__(self) -> str:
        summary = self.summary()
        lines = [f"{name:28} {one['right']:4} of {one['cases']:4}" for name, one in summary["categories"].items()]
        lines += [f"{'all':28} {self.score:.1%} of {summary['cases']}"]
        lines += [f"{name:28} {one['right']:4} of {one['cases']:4}" for name, one in summary["tools"].items()]
        lines += [f"wrong: {w['asked']!r} -> {w['answer']!r}" for w in summary["wrong"]]
        lines += ["sums beyond what is taught, not scored: {right} of {cases}".format(**summary["sums_beyond"])]
        lines += [f"{prompt!r}: {raw!r} | {chat!r}" for prompt, raw, chat in self.promised]
        return "\n".join(lines)


def _by_category(answers: Sequence[tuple[Case, str]]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for case, text in sorted(answers, key=lambda one: one[0].category):
        one = counts.setdefault(case.category, {"right": 0, "cases": 0})
        one["right"] += case.right(text)
        one["cases"] += 1
    return counts


def evaluate(answer: Answer, asked: str = "held-out") -> Report:
    """Asks `answer` every case in one call, with the promised prompts and the sums beyond, and scores the texts. The
    cases with tools are held-out ones."""
    promised = [prompt for one in PROMISED for prompt in (one, [say("user", one)])]
    kinds = cases(asked), tool_cases() if asked == "held-out" else (), cases("beyond")
    texts = iter([text.lstrip() for text in answer([case.prompt for kind in kinds for case in kind] + promised)])
    scored, tools, beyond = (tuple(zip(kind, islice(texts, len(kind)), strict=True)) for kind in kinds)
    said = tuple((one, next(texts), next(texts)) for one in PROMISED)
    return Report(scored, tools, said, beyond)


@contextmanager
def answering(folder: Path, **options: str | int) -> Iterator[Answer]:
    """A function that answers greedily with the project's engine, which has `options` of `EngineConfig`."""
    from apps.llm.chat.conversation import ChatRequest
    from apps.llm.text import Engine, EngineConfig, SamplingParams

    engine = Engine.load(EngineConfig(model=str(folder), **options))
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0)

    def answer(prompts: list[Prompt]) -> list[str]:
        ready = [prompt if isinstance(prompt, str) else engine.chat(ChatRequest(prompt))[0] for prompt in prompts]
        return engine.generate(ready, params)

    try:
        yield answer
    finally:
        engine.shutdown()


def measured(folder: Path) -> dict:
    """What the card reports: the score of the model in `folder` in each number format, and the development score."""
    formats = {}
    for name, options in FORMATS.items():
        with answering(folder, **options) as answer:
            report = evaluate(answer)
            formats[name] = round(report.score, 4)
            if not options:
                evaluation = report.summary()
                development = evaluate(answer, "development").summary()
    evaluation["formats"] = formats
    evaluation["development"] = {key: development[key] for key in ("score", "cases", "categories")}
    return evaluation


def main(
    folder: Annotated[Path, typer.Argument(help="a Hugging Face folder")] = Path(DEMO_MODEL),
    quantize_weights: Annotated[str, typer.Option(help="none or int8")] = "none",
    quantize_kv_cache: Annotated[str, typer.Option(help="none or int8")] = "none",
    development: Annotated[bool, typer.Option("--development", help="ask the development set instead")] = False,
) -> None:
    """Scores the model in FOLDER and prints each category, and every wrong answer."""
    asked = "development" if development else "held-out"
    with answering(folder, quantize_weights=quantize_weights, quantize_kv_cache=quantize_kv_cache) as answer:
        print(evaluate(answer, asked))


if __name__ == "__main__":
    typer.run(main)
