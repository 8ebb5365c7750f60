"""Output formats of findings: terminal, plain lines, JSON, SARIF and GitHub annotations."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kuberay.check.findings import Finding, ordered
from kuberay.check.rules import RULES

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def to_lines(findings: Iterable[Finding]) -> list[str]:
    """One line per finding, as compilers print them: editors recognize `file:line:`."""
    placed = [(f"{f.place}: " if f.place else "", f) for f in ordered(findings)]
    return [f"{place}{f.severity}: {f.where}: {f.said} [{f.rule}]" for place, f in placed]


def to_terminal(findings: Iterable[Finding]) -> "RenderableType":
    """For a rich console: severity and place on one line, then why, then what to write."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    blocks: list[RenderableType] = []
    for f in ordered(findings):
        head = Text.assemble((f.severity, _STYLE[f.severity]), (f"  {f.where}", "bold"), (f"  [{f.rule}]", "dim"))
        head.append(f"  {f.place}" if f.place else "", style="dim")
        instead = Text.assemble(("instead: ", "green"), f.instead)
        blocks += [head, *(Padding(text, (0, 0, 0, 4)) for text in (Text(f.why), instead))]
    return Group(*blocks)


def to_json(findings: Iterable[Finding]) -> str:
    """A JSON list of objects with the fields of Finding."""
    return json.dumps([vars(finding) for finding in ordered(findings)], indent=1)


def to_github(findings: Iterable[Finding]) -> list[str]:
    """Workflow commands of GitHub Actions, which annotate the lines of a pull request."""
    lines = []
    for f in ordered(findings):
        named = {"file": f.file, "line": f.line, "title": f.rule}
        properties = ",".join(f"{key}={_escaped(value, ',:')}" for key, value in named.items() if value is not None)
        command = "notice" if f.severity == "note" else f.severity
        lines.append(f"::{command} {properties}::{_escaped(f'{f.where}: {f.said}')}")
    return lines


def to_sarif(findings: Iterable[Finding]) -> str:
    """SARIF 2.1.0, which code scanning services read."""
    found = ordered(findings)
    named = {finding.rule for finding in found}
    rules = [{"id": name, "shortDescription": {"text": rule.summary}} for name, rule in RULES.items() if name in named]
    run = {"tool": {"driver": {"name": "podslice", "rules": rules}}, "results": [_result(each) for each in found]}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1)


def _result(finding: Finding) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": finding.where}]}
    if finding.file:
        region = {"region": {"startLine": finding.line}} if finding.line else {}
        location["physicalLocation"] = {"artifactLocation": {"uri": finding.file}, **region}
    message = {"text": f"{finding.where}: {finding.said}"}
    return {"ruleId": finding.rule, "level": finding.severity, "message": message, "locations": [location]}


def _escaped(value: object, more: str = "") -> str:
    return str(value).translate({ord(character): f"%{ord(character):02X}" for character in "%\r\n" + more})
