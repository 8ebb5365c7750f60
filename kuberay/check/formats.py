"""How findings are printed: for people, for editors and logs, and for the programs that show them beside the code."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kuberay.check.findings import Finding, ordered
from kuberay.check.rules import RULES

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_GITHUB = {"error": "error", "warning": "warning", "note": "notice"}


def to_lines(findings: Iterable[Finding]) -> list[str]:
    """A line for each finding, as compilers print them: editors and logs can follow `file:line:`."""
    lines = []
    for finding in ordered(findings):
        place = f"{finding.place}: " if finding.place else ""
        lines.append(f"{place}{finding.severity}: {finding.where}: {_said(finding)} [{finding.rule}]")
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


def to_json(findings: Iterable[Finding]) -> str:
    """A list of objects with the fields of Finding."""
    return json.dumps([vars(finding) for finding in ordered(findings)], indent=1)


def to_github(findings: Iterable[Finding]) -> list[str]:
    """GitHub Actions' workflow commands, which annotate the lines of a pull request."""
    lines = []
    for finding in ordered(findings):
        named = {"file": finding.file, "line": finding.line, "title": finding.rule}
        properties = ",".join(f"{key}={_escaped(value, ',:')}" for key, value in named.items() if value is not None)
        text = _escaped(f"{finding.where}: {_said(finding)}")
        lines.append(f"::{_GITHUB[finding.severity]} {properties}::{text}")
    return lines


def to_sarif(findings: Iterable[Finding]) -> str:
    """SARIF 2.1.0, which code scanning services read."""
    found = ordered(findings)
    rules: list[dict[str, Any]] = [
        {"id": name, "shortDescription": {"text": rule.summary}}
        for name, rule in RULES.items()
        if name in {finding.rule for finding in found}
    ]
    driver = {"name": "podslice", "rules": rules}
    run = {"tool": {"driver": driver}, "results": [_result(finding) for finding in found]}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1)


def _result(finding: Finding) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": finding.where}]}
    if finding.file:
        location["physicalLocation"] = {"artifactLocation": {"uri": finding.file}}
        if finding.line:
            location["physicalLocation"]["region"] = {"startLine": finding.line}
    message = {"text": f"{finding.where}: {_said(finding)}"}
    return {"ruleId": finding.rule, "level": finding.severity, "message": message, "locations": [location]}


def _said(finding: Finding) -> str:
    return f"{finding.why.rstrip('.')}. Instead: {finding.instead}"


def _escaped(value: object, more: str = "") -> str:
    text = str(value).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    for character in more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
