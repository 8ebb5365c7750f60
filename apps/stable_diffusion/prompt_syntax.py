r"""AUTOMATIC1111's prompt syntax. None of it is built: its dialect refuses it, the others read letters and say so.

There, `(red:1.5)`, `((red))`, `[red]`, `[red:blue:0.5]`, `[red|blue]`, `<lora:name:1>`, `AND` and `BREAK` do more than
their letters. So does `(red)`, but only by a tenth, and a pair of parentheses is how people write prose: it is drawn as
letters, with a warning. `\(` is the letter in AUTOMATIC1111 too.
"""

import re

from apps.serving.errors import RequestError, shortened

_WEIGHT = re.compile(r":\s*[+-]?[.\d]+\s*\)")
_SYNTAX = (
    (re.compile(r"<\w+:[^<>]+>"), "names a LoRA or another network"),
    (re.compile(r"\(\s*\([^()]*\)?"), "gives words more weight"),
    (re.compile(r"\[[^\]]*\]?"), "gives words less weight, or changes them between steps"),
    (re.compile(r"\bBREAK\b"), "begins a new part of the prompt"),
)
_AND = (re.compile(r"\bAND\b"), "combines prompts")  # in a negative prompt it is a word
_ESCAPED = re.compile(r"\\([()\[\]\\])")


def check_syntax(field: str, text: str) -> None:
    """Raises RequestError if AUTOMATIC1111 would read a part of this prompt as more than letters."""
    plain = _ESCAPED.sub("  ", text)  # of the same length, without those brackets
    part, means = _weighted(plain, text), "gives words a weight"
    for pattern, meaning in (*_SYNTAX, *([_AND] if field == "prompt" else ())):
        if part is None and (found := pattern.search(plain)):
            part, means = text[found.start() : found.end()], meaning
    if part is not None:
        raise RequestError(
            field,
            f"{field} has {shortened(part, 60)!r}, which {means} in AUTOMATIC1111 and is not offered here: leave it "
            "out, or write the letters as \\( \\) \\[ \\], 'and', 'break'",
        )


def unescaped(text: str) -> str:
    r"""The letters of a prompt of AUTOMATIC1111's, in which `\(` stands for a parenthesis."""
    return _ESCAPED.sub(r"\1", text)


def marks(field: str, text: str) -> tuple[str, ...]:
    """A warning if letters of a prompt look like a weight or a network."""
    found = _SYNTAX[0][0].search(text)
    return _as_letters(field, found[0] if found else _weighted(text, text))


def bare_parentheses(field: str, text: str) -> tuple[str, ...]:
    """A warning if AUTOMATIC1111 would give words in parentheses, without a number, a tenth more weight."""
    plain = _ESCAPED.sub("  ", text)
    found = re.search(r"\([^()]+\)", plain)
    return _as_letters(field, text[found.start() : found.end()] if found else None)


def _as_letters(field: str, part: str | None) -> tuple[str, ...]:
    if part is None:
        return ()
    return (f"{field} has {shortened(part, 60)!r}, which is read as letters: weights and networks are not built",)


def _weighted(plain: str, text: str) -> str | None:
    """The first part of the text that has a weight, such as `(red:1.5)`; `plain` is where brackets are looked for."""
    opens = plain.find("(")
    found = _WEIGHT.search(plain, opens) if opens >= 0 else None
    return text[plain.rfind("(", 0, found.start()) : found.end()] if found else None
