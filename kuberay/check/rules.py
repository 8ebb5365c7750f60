"""The registry of rules: what a rule examines, its source, and how it reports what it finds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import UnionType
from typing import Any, NamedTuple

from kuberay.check.findings import RANK, Finding, Place, Severity
from ray_configs.base import nearest


class Problem(NamedTuple):
    """What a rule yields; the registry adds the rule's name to make a Finding."""

    severity: Severity
    place: Place
    why: str
    instead: str


error, warning, note = (partial(Problem, severity) for severity in RANK)


@dataclass(frozen=True)
class Check:
    """One function of a rule."""

    subject: type | UnionType
    """The class whose instances it examines: Manifest, RayCluster, Pod ..."""
    source: str
    """The program or document that the requirement comes from."""
    find: Callable[[Any], Iterable[Problem]]

    @property
    def about(self) -> str:
        """The function's docstring."""
        return "\n".join(line.strip() for line in (self.find.__doc__ or "").strip().splitlines())


@dataclass(frozen=True)
class Rule:
    """A rule that people silence, look up or cite by name. The name stays the same when its functions change."""

    name: str
    checks: list[Check] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """The first paragraphs of its functions' docstrings."""
        return " ".join(dict.fromkeys(check.about.split("\n\n")[0].replace("\n", " ") for check in self.checks))


RULES: dict[str, Rule] = {}
"""All rules by name, in the order of registration."""


def rule(subject: type | UnionType, name: str, source: str) -> Callable[[Any], Any]:
    """Registers a generator of Problems about `subject` under the rule of this name."""

    def register(find: Callable[[Any], Iterable[Problem]]) -> Callable[[Any], Iterable[Problem]]:
        RULES.setdefault(name, Rule(name)).checks.append(Check(subject, source, find))
        return find

    return register


def apply(subjects: Iterable[Any]) -> Iterable[Finding]:
    """Applies every rule to the subjects of its class."""
    for subject in subjects:
        for known in RULES.values():
            for check in known.checks:
                if isinstance(subject, check.subject):
                    for severity, at, why, instead in check.find(subject):
                        yield Finding(known.name, severity, at.where, why, instead, at.line, at.file)


def meant(word: str, choices: Iterable[str], otherwise: str) -> str:
    """`write nodeSelector`, or `otherwise` if no choice is close."""
    found = nearest(word, choices)
    return f"write {found}" if found else otherwise
