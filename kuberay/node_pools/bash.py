"""Lays out bash: comments, commands that end in one flag a line, and the words of the config as literal text."""

import textwrap
from collections.abc import Iterable, Sequence
from shlex import quote

__all__ = ["block", "comment", "flag", "joined", "laid_out", "quote", "unless_there"]

EXISTS = """\
# Quiet; succeeds where the command after it does: `exists LOOK || MAKE` makes only what is not there yet.
exists() { "$@" >/dev/null 2>&1; }
"""


def flag(name: str, value: object) -> str:
    """`--zone=us-west4-a`, with the value as literal text, whatever is in it."""
    return f"--{name}={quote(str(value))}"


def comment(text: str) -> str:
    """`text` must come from this project: a line break in it would end the comment."""
    return textwrap.fill(text, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"


def laid_out(words: str, flags: Iterable[str] = (), indent: str = "") -> str:
    """The command's words on the first line, each flag on one of its own."""
    return " \\\n".join([indent + words, *(f"{indent}    {one}" for one in flags)]) + "\n"


def block(why: str, *parts: str) -> str:
    return comment(why) + "".join(parts)


def unless_there(
    why: str, command: str, flags: Iterable[str] = (), where: str = "", look: str = "describe", make: str = "create"
) -> str:
    """A command that makes something, run only where looking for it, at a place that flags name, finds nothing.

    `command` has {} where one verb or the other goes.
    """
    looked = f"{command.format(look)} {where}".rstrip()
    return block(why, f"exists {looked} ||\n{laid_out(command.format(make), flags, indent='  ')}")


def joined(blocks: Sequence[str]) -> str:
    return "\n".join(part for part in blocks if part)
