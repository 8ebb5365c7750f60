"""What a check has to say: one finding for each thing that would go wrong, and how it is printed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType

Severity = Literal["error", "warning", "note"]

_RANK: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
_STYLE: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True)
class Finding:
    """One thing that would go wrong (error), may go wrong or costs more than one expects (warning), or helps to know
    (note)."""

    rule: str
    severity: Severity
    where: str
    """Object and path: `RayService/llama3-8b spec.rayClusterConfig.workerGroupSpecs[0].numOfHosts`."""
    why: str
    """What happens at run time, and who refuses or ignores it."""
    instead: str
    """What to write."""
    line: int | None = None
    """Line in the file, from 1; None for objects that came from no file."""
    file: str | None = None

    @property
    def place(self) -> str:
        """`service.yaml:12`; empty where neither is known."""
        return ":".join(str(part) for part in (self.file, self.line) if part is not None)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """By file, then line, then the gravest first."""
    return sorted(findings, key=lambda f: (f.file or "", f.line or 0, _RANK[f.severity], f.where, f.rule))


def to_lines(findings: Iterable[Finding]) -> list[str]:
    """A line for each finding, as compilers print them: editors and logs can follow `file:line:`."""
    lines = []
    for finding in ordered(findings):
        place = f"{finding.place}: " if finding.place else ""
        why = finding.why.rstrip(".")
        lines.append(f"{place}{finding.severity}: {finding.where}: {why}. Instead: {finding.instead} [{finding.rule}]")
    return lines


def to_terminal(findings: Iterable[Finding]) -> "RenderableType":
    """For a rich console: place and severity on one line, then why, then what to write."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    blocks: list[RenderableType] = []
    for finding in ordered(findings):
        head = Text(finding.severity, style=_STYLE[finding.severity])
        head.append(f"  {finding.where}", style="bold")
        head.append(f"  [{finding.rule}]", style="dim")
        if finding.place:
            head.append(f"  {finding.place}", style="dim")
        blocks.append(head)
        blocks.append(Padding(Text(finding.why), (0, 0, 0, 4)))
        blocks.append(Padding(Text.assemble(("instead: ", "green"), finding.instead), (0, 0, 0, 4)))
    return Group(*blocks)
