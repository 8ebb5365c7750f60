"""Reads the Dockerfile and its ignore file as far as these tests need."""

import fnmatch
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "kuberay" / "image"
TARGETS = ("llm", "llm-vllm", "stable-diffusion")


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)
    """(COPY, its arguments), with line continuations joined and comments gone."""

    def all(self, instruction: str) -> list[str]:
        return [arguments for name, arguments in self.instructions if name == instruction]


@dataclass(frozen=True)
class Dockerfile:
    arguments: dict[str, str]
    """ARGs before the first FROM, with their defaults."""
    stages: dict[str, Stage]

    def all(self, instruction: str) -> list[str]:
        return [arguments for stage in self.stages.values() for arguments in stage.all(instruction)]


def read(path: Path = FOLDER / "Dockerfile") -> Dockerfile:
    """Raises ValueError where a line is no instruction."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for line in filter(str.strip, text.replace("\\\n", " ").splitlines()):
        match = re.fullmatch(r"([A-Z]+)\s+(.+)", line.strip())
        if match is None:
            raise ValueError(f"not an instruction: {line!r}")
        instruction, value = match.groups()
        if instruction == "FROM":
            base, _, name = re.fullmatch(r"(\S+)( AS (\S+))?", value).groups()
            for argument, default in arguments.items():
                base = base.replace("${" + argument + "}", default)
            stage = stages[name] = Stage(name, base)
        elif stage is None:
            argument, default = value.split("=", 1)
            arguments[argument] = default
        else:
            stage.instructions.append((instruction, value))
    return Dockerfile(arguments, stages)


def ignored(path: str) -> bool:
    """As Docker reads an ignore file: the last pattern that fits the path, or a folder that it is in, decides."""
    parts = Path(path).parts
    candidates = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    decision = False
    for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        anywhere = pattern.startswith("**/")
        for candidate in candidates:
            name = candidate.rsplit("/", 1)[-1] if anywhere else candidate
            if fnmatch.fnmatchcase(name, pattern.removeprefix("**/")):
                decision = not line.startswith("!")
    return decision
