"""The register of rules: what a rule looks at, where it comes from, and how it says what it found."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kuberay.check.findings import Finding, Severity
from kuberay.check.nodes import Node


@dataclass(frozen=True, eq=False)
class Problem:
    """What a rule found; the register adds the rule's name to make a Finding of it."""

    node: Node
    severity: Severity
    why: str
    instead: str


@dataclass(frozen=True)
class Rule:
    name: str
    subject: type
    """What it is asked about, once for each: a Manifest, a Cluster, a Pod ..."""
    source: str
    """Who says so: the program, or the table, that refuses or ignores what the rule finds."""
    find: Callable[[Any], Iterable[Problem]]


RULES: list[Rule] = []
"""All rules, in the order of their files. One name can belong to several, each about a different subject."""


def rule(subject: type, name: str, source: str) -> Callable[[Any], Any]:
    """Registers a generator of Problems as a rule about `subject`."""

    def register(find: Callable[[Any], Iterable[Problem]]) -> Callable[[Any], Iterable[Problem]]:
        RULES.append(Rule(name, subject, source, find))
        return find

    return register


def error(node: Node, why: str, instead: str) -> Problem:
    return Problem(node, "error", why, instead)


def warning(node: Node, why: str, instead: str) -> Problem:
    return Problem(node, "warning", why, instead)


def note(node: Node, why: str, instead: str) -> Problem:
    return Problem(node, "note", why, instead)


def apply(subjects: Iterable[Any]) -> Iterable[Finding]:
    """Every rule on every subject that is of its kind."""
    for subject in subjects:
        for known in RULES:
            if isinstance(subject, known.subject):
                for problem in known.find(subject):
                    yield Finding(
                        known.name,
                        problem.severity,
                        problem.node.where,
                        problem.why,
                        problem.instead,
                        problem.node.line,
                        problem.node.document.file,
                    )


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
