"""What a check has to say: one finding for each thing that would go wrong."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

Severity = Literal["error", "warning", "note"]

RANK: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


class Place(Protocol):
    """What a finding can be about."""

    @property
    def where(self) -> str:
        """Object and path: `RayService/llama3-8b spec.rayClusterConfig.workerGroupSpecs[0].numOfHosts`."""

    @property
    def line(self) -> int | None:
        """Line in the file, from 1; None for what came from no file."""

    @property
    def file(self) -> str | None: ...


@dataclass(frozen=True)
class Location:
    """A place that is no value of a YAML file: a file, or a field of a typed config."""

    where: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that would go wrong (error), may go wrong or costs more than one expects (warning), or helps to know
    (note)."""

    rule: str
    severity: Severity
    where: str
    """As `Place` says it."""
    why: str
    """What happens at run time, and who refuses or ignores it."""
    instead: str
    """What to write."""
    line: int | None = None
    file: str | None = None

    @property
    def place(self) -> str:
        """`service.yaml:12`; empty where neither is known."""
        return ":".join(str(part) for part in (self.file, self.line) if part is not None)

    @property
    def said(self) -> str:
        """Why, and what to write, in one line."""
        return f"{self.why.rstrip('.')}. Instead: {self.instead}"


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """By file, then line, then the gravest first."""
    return sorted(findings, key=lambda f: (f.file or "", f.line or 0, RANK[f.severity], f.where, f.rule))
