"""Comments in YAML that silence a rule for one line: `# podslice: ignore RULE: the reason`."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kuberay.check.findings import Finding
from kuberay.check.rules import RULES, Problem, meant, note, rule, warning

_COMMENT = re.compile(r"#\s*podslice:\s*ignore\b[\s=:]*(?P<rules>[\w-]+(\s*,\s*[\w-]+)*)?\s*:?\s*(?P<reason>.*)")


@dataclass(eq=False)
class Comment:
    """One comment, and the line that it applies to: its own, or the next one that is not a comment."""

    where: ClassVar = "comment"

    file: str
    line: int
    about: int
    rules: tuple[str, ...]
    reason: str
    used: set[str] = field(default_factory=set)

    def silences(self, finding: Finding) -> bool:
        if not self.reason or finding.rule not in self.rules or (finding.file, finding.line) != (self.file, self.about):
            return False
        self.used.add(finding.rule)
        return True


def comments_in(text: str, file: str) -> list[Comment]:
    """Comments in the text of a YAML file."""
    lines, found = text.splitlines(), []
    for number, line in enumerate(lines, 1):
        if match := _COMMENT.search(line):
            about = number
            while about <= len(lines) and lines[about - 1].lstrip().startswith("#"):
                about += 1
            rules = tuple(re.findall(r"[\w-]+", match["rules"] or ""))
            found.append(Comment(file, number, about, rules, match["reason"].strip()))
    return found


def silenced(findings: Iterable[Finding], objects: Iterable[Any]) -> tuple[list[Finding], list[Comment]]:
    """Returns the findings that no comment silences, and all comments in the objects' files."""
    comments = list(dict.fromkeys(each for item in objects for each in getattr(item, "_comments", ())))
    return [f for f in findings if not any(comment.silences(f) for comment in comments)], comments


@rule(Comment, "ignore-comment", "Podslice: comments that silence its rules")
def ignore_comment(comment: Comment) -> Iterator[Problem]:
    """A comment that silences a rule names that rule, gives a reason and matches a finding."""
    if not comment.rules or not comment.reason:
        why = f"names no {'reason' if comment.rules else 'rule'}: it silences nothing"
        yield warning(comment, why, "write # podslice: ignore RULE: and the reason")
        return
    for name in comment.rules:
        if name not in RULES:
            instead = meant(name, RULES, "look it up: python -m kuberay check --list")
            yield warning(comment, f"there is no rule {name}: it silences nothing", instead)
        elif name not in comment.used:
            yield note(comment, f"{name} finds nothing on line {comment.about}", "remove the comment")
