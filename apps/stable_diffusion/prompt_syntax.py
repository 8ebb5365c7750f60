r"""AUTOMATIC1111's prompt syntax, as far as it is more than weights (which `conditioning.emphasis` reads).

There, `[red:blue:0.5]`, `[red|blue]` change words between steps, `<hypernet:name:1>` names a network and `AND`
combines prompts: they are refused. `<lora:name:1>` is built. Where a model's prompts have no weights, `(red:1.5)`,
`((red))`, `[red]` and `BREAK` are refused too; `(red)` is not: there it weighs only a tenth more, and a pair of
parentheses is how people write prose. Other dialects read weights if they are asked to, else letters, with a warning.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from apps.serving.errors import RequestError, shortened
from apps.stable_diffusion.engine.request import LoraUse

_WEIGHT = re.compile(r":\s*[+-]?[.\d]+\s*\)")
_OTHER_NETWORK = (re.compile(r"<\w+:[^<>]+>"), "names a network")
_EMPHASIS = (
    (re.compile(r"\(\s*\([^()]*\)?"), "gives words more weight"),
    (re.compile(r"\[[^\]]*\]?"), "gives words less weight"),
    (re.compile(r"\bBREAK\b"), "begins a new part of the prompt"),
)
_AND = (re.compile(r"\bAND\b"), "combines prompts")  # in a negative prompt it is a word
_NETWORK = re.compile(r"<(\w+):([^<>]+)>")
_STEP = re.compile(r":\s*[+-]?(?:\d+\.?\d*|\.\d+)\s*$")
_OPENS = {")": "(", "]": "["}
_ESCAPED = re.compile(r"\\([()\[\]\\])")


def split_loras(field: str, text: str) -> tuple[str, tuple[LoraUse, ...]]:
    """A prompt without its marks of LoRAs, and these: `<lora:name>`, `<lora:name:0.8>` for the text encoders and the
    denoiser, `<lora:name:0.5:0.8>` for each, `<lora:name:te=0.5:unet=0.8>`. `lyco` is an older word for `lora`.

    Raises:
        RequestError: a weight is no number, or there is more than name and weights.
    """
    uses: list[LoraUse] = []

    def taken(found: re.Match[str]) -> str:
        if found[1].lower() not in ("lora", "lyco"):
            return found[0]
        uses.append(_lora_use(field, found[0], found[2]))
        return ""

    return _NETWORK.sub(taken, text), tuple(uses)


def _lora_use(field: str, mark: str, arguments: str) -> LoraUse:
    positional = [part for part in arguments.split(":") if "=" not in part]
    named = dict(part.split("=", 1) for part in arguments.split(":") if "=" in part)
    try:
        if not positional or len(positional) > 3 or set(named) - {"te", "unet"}:
            raise ValueError
        text = float(named.get("te", positional[1] if len(positional) > 1 else 1.0))
        weight = float(named.get("unet", positional[2] if len(positional) > 2 else text))
    except ValueError:
        raise RequestError(
            field,
            f"{field} has {shortened(mark, 60)!r}, which is no LoRA with its weights: write <lora:name:0.8>, or "
            "<lora:name:te=0.5:unet=0.8>",
        ) from None
    return LoraUse(positional[0], weight, text)


def with_loras(text: str, uses: Sequence[LoraUse]) -> str:
    """The prompt with the marks of its LoRAs at the end, as pictures' metadata have it."""
    marks = (
        f"<lora:{use.name}:{use.weight:g}>"
        if use.weight == use.text_weight
        else f"<lora:{use.name}:te={use.text_weight:g}:unet={use.weight:g}>"
        for use in uses
    )
    return " ".join(filter(None, (text, *marks)))


def check_syntax(field: str, text: str, emphasis: bool) -> None:
    """Raises RequestError if AUTOMATIC1111 would read a part of this prompt as more than what is built.

    Args:
        emphasis: whether the model's prompts have weights.
    """
    plain = _ESCAPED.sub("  ", text)  # of the same length, without those brackets
    part, means = _scheduled(plain, text), "changes words between steps"
    if part is None and not emphasis:
        part, means = _weighted(plain, text), "gives words a weight"
    patterns = [_OTHER_NETWORK, *([] if emphasis else _EMPHASIS), *([_AND] if field == "prompt" else ())]
    for pattern, meaning in patterns:
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


def marks(field: str, text: str, emphasis: bool) -> tuple[str, ...]:
    """A warning if letters of a prompt look like a network, or a weight that is not read."""
    found = _OTHER_NETWORK[0].search(text)
    if found:
        return _as_letters(field, found[0], "name LoRAs in loras")
    return () if emphasis else _as_letters(field, _weighted(text, text), "emphasis: true reads weights")


def bare_parentheses(field: str, text: str) -> tuple[str, ...]:
    """A warning if AUTOMATIC1111 would give words in parentheses, without a number, a tenth more weight."""
    plain = _ESCAPED.sub("  ", text)
    found = re.search(r"\([^()]+\)", plain)
    return _as_letters(
        field, text[found.start() : found.end()] if found else None, "this model's prompts have no weights"
    )


def _as_letters(field: str, part: str | None, why: str) -> tuple[str, ...]:
    return () if part is None else (f"{field} has {shortened(part, 60)!r}, which is read as letters: {why}",)


def _scheduled(plain: str, text: str) -> str | None:
    """The first `[red:blue:0.5]` or `[red|blue]`; `plain` is where brackets are looked for."""
    opened: list[_Bracket] = []
    for i, letter in enumerate(plain):
        match letter:
            case "(" | "[":
                opened.append(_Bracket(letter, i, i))
            case "|" if opened:
                opened[-1].alternates = True
            case ":" if opened:
                opened[-1].colon = i
            case ")" | "]" if opened and opened[-1].letter == _OPENS[letter]:
                closed = opened.pop()
                if letter == "]" and (closed.alternates or _STEP.match(plain[closed.colon : i])):
                    return text[closed.start : i + 1]
    return None


@dataclass
class _Bracket:
    """One that is open."""

    letter: str
    start: int
    colon: int
    """The last one within it, and within no other."""
    alternates: bool = False


def _weighted(plain: str, text: str) -> str | None:
    """The first part of the text that has a weight, such as `(red:1.5)`; `plain` is where brackets are looked for."""
    opens = plain.find("(")
    found = _WEIGHT.search(plain, opens) if opens >= 0 else None
    return text[plain.rfind("(", 0, found.start()) : found.end()] if found else None
