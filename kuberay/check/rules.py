"""The register of rules: what a rule looks at, where it comes from, and how it says what it found."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import UnionType
from typing import Any, NamedTuple

from kuberay.check.findings import RANK, Finding, Place, Severity


class Problem(NamedTuple):
    """What a rule found; the register adds the rule's name to make a Finding of it."""

    severity: Severity
    place: Place
    why: str
    instead: str


error, warning, note = (partial(Problem, severity) for severity in RANK)


@dataclass(frozen=True)
class Check:
    """One function of a rule."""

    subject: type | UnionType
    """What it is asked about, once for each: a Manifest, a RayCluster, a Pod ..."""
    source: str
    """Who says so: the program, or the table, that refuses or ignores what it finds."""
    find: Callable[[Any], Iterable[Problem]]

    @property
    def about(self) -> str:
        """Its docstring."""
        return "\n".join(line.strip() for line in (self.find.__doc__ or "").strip().splitlines())


@dataclass(frozen=True)
class Rule:
    """What a person switches off, looks up or cites by name; the name stays when the functions behind it change."""

    name: str
    checks: list[Check] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """The first sentences of its functions."""
        return " ".join(dict.fromkeys(check.about.split("\n\n")[0].replace("\n", " ") for check in self.checks))


RULES: dict[str, Rule] = {}
"""All rules by name, in the order of their files. Every finding is one of a rule here."""


def rule(subject: type | UnionType, name: str, source: str) -> Callable[[Any], Any]:
    """Registers a generator of Problems about `subject` with the rule of this name."""

    def register(find: Callable[[Any], Iterable[Problem]]) -> Callable[[Any], Iterable[Problem]]:
        RULES.setdefault(name, Rule(name)).checks.append(Check(subject, source, find))
        return find

    return register


def apply(subjects: Iterable[Any]) -> Iterable[Finding]:
    """Every rule on every subject that is of its kind."""
    for subject in subjects:
        for known in RULES.values():
            for check in known.checks:
                if isinstance(subject, check.subject):
                    for severity, at, why, instead in check.find(subject):
                        yield Finding(known.name, severity, at.where, why, instead, at.line, at.file)


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that was probably meant."""
    from difflib import get_close_matches

    lower = {choice.lower(): choice for choice in choices}
    found = get_close_matches(word.lower(), lower, n=1, cutoff=0.72)
    return lower[found[0]] if found else None


def meant(word: str, choices: Iterable[str], otherwise: str) -> str:
    """`write nodeSelector`, or what to do where nothing is near."""
    found = nearest(word, choices)
    return f"write {found}" if found else otherwise
