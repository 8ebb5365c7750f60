"""Lines of Python in each room against its budget: `python -m tools.budgets`. Fails where a room is over by a tenth.

A line is a line: code, comment, docstring or blank. Tests, documentation and `tools/` itself are not counted.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SPARE = 1.1
"""How far over its budget a room may go before the check fails."""


@dataclass(frozen=True)
class Room:
    name: str
    budget: int
    paths: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Parts of `paths` that another room counts."""
    ceiling: int = 0
    """For a room that is still over: what it may hold until it is smaller. Lower it with the room; never raise it."""

    @property
    def limit(self) -> int:
        return max(round(self.budget * SPARE), self.ceiling)

    def lines(self) -> int:
        return sum(count_lines(path) for path in self.paths) - sum(count_lines(path) for path in self.without)


PLAN = ("apps/plan", "apps/llm/plan.py")
PICTURES_PLAN = ("apps/stable_diffusion/plan.py",)
BESIDE = ("ray_configs", "kuberay/render", "podslice")
JOBS = ("apps/batch",)
ROOMS = (
    Room("core", 13_000, ("apps", *BESIDE), ("apps/stable_diffusion", *JOBS, *PLAN), ceiling=14_700),
    Room("pictures", 4_300, ("apps/stable_diffusion",), PICTURES_PLAN),
    Room("plan", 2_200, (*PLAN, *PICTURES_PLAN)),
    Room("kuberay without render", 6_500, ("kuberay",), ("kuberay/render",), ceiling=10_050),
    Room("batch and clients", 3_600, (*JOBS, "clients")),
)
PRODUCT = Room("together", 30_000, ("apps", "ray_configs", "kuberay", "podslice", "clients"), ceiling=35_500)


def count_lines(path: str) -> int:
    """Lines of one file, or of all Python files under a folder.

    Raises:
        FileNotFoundError: there is none: the room has moved, and its path in ROOMS has not.
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
        elif lines > room.budget * SPARE:
            note = f"to shrink; for now at most {room.limit:,}"
        elif room.ceiling > room.budget * SPARE:
            note = "within a tenth of its budget: take its ceiling out"
        print(f"{room.name:24}{lines:8,} of {room.budget:7,}  {note}".rstrip())
    if over:
        print(f"too many lines in: {', '.join(over)}", file=sys.stderr)
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
