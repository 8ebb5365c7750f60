"""What a check reports: one finding per problem."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

Severity = Literal["error", "warning", "note"]

RANK: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


class Place(Protocol):
    """The location of a finding."""

    @property
    def where(self) -> str:
        """Object and path: `RayService/llama3-8b spec.rayClusterConfig.workerGroupSpecs[0].numOfHosts`."""

    @property
    def line(self) -> int | None:
        """Line in the file, from 1; None if there is no file."""

    @property
    def file(self) -> str | None: ...


@dataclass(frozen=True)
class Location:
    """A place other than a value in a YAML file: the file itself, or a field of a typed config."""

    where: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Finding:
    """A problem (error), a likely or costly problem (warning), or something helpful to know (note)."""

    rule: str
    severity: Severity
    where: str
    """As in `Place`."""
    why: str
    """What happens at run time, and which program refuses or ignores it."""
    instead: str
    """What to write."""
    line: int | None = None
    file: str | None = None

    @property
    def place(self) -> str:
        """`service.yaml:12`; empty if neither is known."""
        return ":".join(str(part) for part in (self.file, self.line) if part is not None)

    @property
    def said(self) -> str:
        """`why` and `instead` on one line."""
        return f"{self.why.rstrip('.')}. Instead: {self.instead}"


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Sorted by file, then line, then severity."""
    return sorted(findings, key=lambda f: (f.file or "", f.line or 0, RANK[f.severity], f.where, f.rule))
