"""The rules as text: a list, one rule in full, and the documentation page.

python -m kuberay.check.catalog > docs/rules.md
"""

from kuberay.check.rules import RULES, Rule

_PAGE = """\
# Rules of `podslice check`

Generated from the rules' docstrings by `python -m kuberay.check.catalog > docs/rules.md`.

    python -m kuberay check service.yaml              # errors, warnings and notes, each with its rule in brackets
    python -m kuberay check --list                    # all rules
    python -m kuberay check --explain tpu-hosts       # one rule, with its source
    python -m kuberay check --ignore image-tag ...    # without this rule
    python -m kuberay check --format github ...       # text, json, sarif or github

A comment silences a rule on its own line, or on the next line that is not a comment. It needs a reason:

    image: registry.example/ray:latest  # podslice: ignore image-tag: the registry pins this tag
"""


def listing() -> str:
    """One line per rule."""
    width = max(map(len, RULES))
    return "\n".join(f"{name:{width}}  {rule.summary}" for name, rule in sorted(RULES.items()))


def explained(name: str) -> str:
    """One rule in full."""
    return f"{name}\n\n{_body(RULES[name])}"


def page() -> str:
    """All rules, as Markdown."""
    return _PAGE + "".join(f"\n## {name}\n\n{_body(rule)}\n" for name, rule in sorted(RULES.items()))


def _body(rule: Rule) -> str:
    return "\n\n".join(f"{check.about}\n\nSource: {check.source}." for check in rule.checks)


if __name__ == "__main__":
    import kuberay.check  # noqa: F401  registers the rules

    print(page(), end="")
