"""Checks each room's lines of Python against its budget: `python -m tools.budgets`. Fails at more than 10 % over.

All lines count: code, comments, docstrings and blank ones. Tests, documentation and `tools/` itself are not counted.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
SPARE = 1.1
"""Factor by which a room may exceed its budget before the check fails."""


@dataclass(frozen=True)
class Room:
    name: str
    budget: int
    paths: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Parts of `paths` that count in another room."""
    ceiling: int = 0
    """Temporary limit of a room that is over its budget. Lower it as the room shrinks; never raise it."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Features added since the budget was set, and the lines that each adds to it."""

    @property
    def allowed(self) -> int:
        return round(self.budget * SPARE) + sum(self.features.values())

    @property
    def limit(self) -> int:
        return max(self.allowed, self.ceiling + sum(self.features.values()))

    def lines(self) -> int:
        return sum(count_lines(path) for path in self.paths) - sum(count_lines(path) for path in self.without)


PLAN = ("apps/plan", "apps/llm/plan.py")
PICTURES_PLAN = ("apps/stable_diffusion/plan.py",)
BESIDE = ("ray_configs", "kuberay/render", "podslice")
JOBS = ("apps/batch",)
PLAYGROUND = ("apps/playground",)
SINCE = {
    "core": {
        "tools and reasoning": 1_850,
        "a start that shows how it goes": 690,
        "files and batches": 1_850,
        "steps split by token": 60,
        "Anthropic's messages": 580,
        "OpenAI's responses": 880,
        "scores of prompts, tokens and reranking": 374,
        "speculation": 400,
        "priorities": 95,
        "objects for boards and alerts": 40,
        "fairness between callers": 555,
        "Gemma 3 and YaRN": 140,
        "OpenTelemetry spans": 255,
        "vLLM's metrics and tokenizer_info": 70,
        "DeepSeek's tool calls": 80,
        "mixtures of experts": 250,
        "quantized checkpoints": 330,
        "LoRA adapters": 1_040,
        "LongRoPE and dynamic rope": 100,
        "gpt-oss and MXFP4": 210,
        "gpt-oss's harmony format": 200,
        "Qwen3-Reranker and scores": 210,
        "a KV cache in FP8": 25,
        "Gemma 4": 380,
        "types checked on the host side": 30,
        "six models in the catalog": 150,
        "expert_parallel": 135,
        "experts by a TPU kernel": 320,
        "what Codex and Claude Code send": 101,
        "weights read ahead by several threads": 185,
        "a CPU's own matrix products": 660,
    },
    "plan": {
        "the attention kernel's instructions": 130,
        "sizes of more families": 60,
        "experts": 120,
        "the experts' kernel and their uneven load": 250,
        "layers of several kinds, Gemma 4's sizes": 90,
        "what MLPerf measured, beside a plan": 24,
    },
    "kuberay": {"Grafana boards and Prometheus rules": 565, "a check of the bucket of batches": 7},
    "playground": {"a page to try a service": 971},
}
ROOMS = (
    Room(
        "core",
        13_000,
        ("apps", *BESIDE),
        ("apps/stable_diffusion", *JOBS, *PLAN, *PLAYGROUND),
        features=SINCE["core"],
    ),
    Room("pictures", 4_300, ("apps/stable_diffusion",), PICTURES_PLAN),
    Room("plan", 2_200, (*PLAN, *PICTURES_PLAN), features=SINCE["plan"]),
    Room("kuberay without render", 6_500, ("kuberay",), ("kuberay/render",), features=SINCE["kuberay"]),
    Room("batch and clients", 3_600, (*JOBS, "clients")),
    Room("playground", 0, PLAYGROUND, features=SINCE["playground"]),
)
PRODUCT = Room(
    "together",
    30_000,
    ("apps", "ray_configs", "kuberay", "podslice", "clients"),
    features={name: lines for room in SINCE.values() for name, lines in room.items()},
)


def count_lines(path: str) -> int:
    """Lines of one file, or of all Python files under a folder.

    Raises:
        FileNotFoundError: the path does not exist; the room has probably moved, and ROOMS is out of date.
    """
    where = ROOT / path
    if not where.exists():
        raise FileNotFoundError(f"{path} does not exist: correct ROOMS in tools/budgets.py")
    files = sorted(where.rglob("*.py")) if where.is_dir() else [where]
    return sum(len(file.read_text().splitlines()) for file in files)


def main() -> int:
    over = []
    for room in (*ROOMS, PRODUCT):
        lines = room.lines()
        note = ""
        if lines > room.limit:
            over.append(room.name)
            note = f"OVER its limit of {room.limit:,}"
        elif lines > room.allowed:
            note = f"to shrink; for now at most {room.limit:,}"
        elif room.limit > room.allowed:
            note = "within a tenth of its budget: take its ceiling out"
        print(f"{room.name:24}{lines:8,} of {room.budget:7,}  {note}".rstrip())
    if over:
        print(f"too many lines in: {', '.join(over)}", file=sys.stderr)
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
