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


def unless_there(look: str, words: str, flags: Iterable[str] = ()) -> str:
    """The command, made to run only where looking for its result finds nothing."""
    return f"exists {look} ||\n{laid_out(words, flags, indent='  ')}"


def block(why: str, *parts: str) -> str:
    return comment(why) + "".join(parts)


def joined(blocks: Sequence[str]) -> str:
    return "\n".join(part for part in blocks if part)
