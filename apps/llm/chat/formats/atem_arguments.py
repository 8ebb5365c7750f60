"""The arguments of Muse Glimmer's calls: `<atem:parameter name="days">3</atem:parameter>`, one after another.

Texts and numbers are as they are, lists and objects are JSON. So a value alone does not say whether it is a text: its
tool's schema does. Where that leaves it open, what can be read as JSON is JSON, as in vLLM's parser.
"""

import json
from collections.abc import Generator, Mapping
from typing import Any

from apps.llm.chat.call_format import literal
from apps.llm.chat.reader import END, NotACall
from apps.llm.chat.values import Emit, blank, exactly
from apps.llm.schemas.enforced import enforceable, is_loosened, loosened
from apps.llm.schemas.parts import NOTES, TYPES, SchemaParts, comparable, values
from apps.llm.schemas.written import Schema, schema_text

PARAMETER, NAMED, CLOSES = '<atem:parameter name="', '">', "</atem:parameter>"
CLOSES_IN_REGEX = CLOSES.replace("/", r"\/")
ANY = frozenset(TYPES) - {"integer"}  # which is a number
TEXT = frozenset({"string"})
OBJECT = frozenset({"properties", "required", "additionalProperties", "type", "$defs", "definitions", "$schema", "$id"})
"""Keywords of an object's schema that its rules follow, or that say nothing of its values."""


class Parameters:
    """What a tool's schema says of its parameters."""

    def __init__(self, schema: Schema):
        self.parts = SchemaParts(schema)
        self.schema: Schema = self.parts.resolved(schema)
        found = self.schema.get("properties")
        self.named: Mapping[str, Any] = found if isinstance(found, Mapping) else {}

    def kinds(self, name: str) -> frozenset[str]:
        """The types that a parameter may have; an integer is a number."""
        return frozenset(self.parts.kinds_of(self.parts.resolved(self.named.get(name, True))))


# -- reading ----------------------------------------------------------------------------------------------------------


def one_of(char: str, texts: tuple[str, ...]) -> Generator[None, str, tuple[str, str]]:
    """The one of these texts that is next, or "", and the character after it."""
    seen = ""
    while char is not END and any(text.startswith(seen + char) for text in texts):
        seen += char
        char = yield
        if seen in texts:
            return seen, char
    return "", char


def quoted(char: str) -> Generator[None, str, tuple[str, str]]:
    """A name up to `">`, and the character after that."""
    name = ""
    while char != NAMED[0]:
        if char is END or char in "<>\n":
            raise NotACall(char)
        name += char
        char = yield
    char = yield from exactly(char, NAMED)
    return name, char


def read_arguments(
    char: str, emit: Emit, parameters: Parameters, closes: str, broken_by: tuple[str, ...]
) -> Generator[None, str, tuple[bool, str]]:
    """Parameters up to `closes`, as a JSON object: whether that was there, and the character after it.

    Args:
        broken_by: marks that no value has: one of them ends the arguments, too.
    """
    emit("{")
    between = ""
    while True:
        char = yield from blank(char)
        found, char = yield from one_of(char, (PARAMETER, closes))
        if found != PARAMETER:
            break
        name, char = yield from quoted(char)
        emit(f"{between}{_text(name)}: ")
        between = ", "
        mark, char = yield from _value(char, emit, parameters.kinds(name), (CLOSES, *broken_by))
        if not mark:  # cut short: what is told stays true
            return False, END
        if mark != CLOSES:
            found = ""
            break
    if found or char is not END:
        emit("}")
    return found == closes, char


def _value(
    char: str, emit: Emit, kinds: frozenset[str], ends: tuple[str, ...]
) -> Generator[None, str, tuple[str, str]]:
    """A value as JSON, the mark that ends it ("" at the answer's end), and the character after that."""
    if kinds == TEXT:
        emit('"')
        mark, char = yield from _until(char, lambda text: emit(_text(text)[1:-1]), ends)
        if mark:
            emit('"')
        return mark, char
    written: list[str] = []
    mark, char = yield from _until(char, written.append, ends)
    if mark:
        emit(as_json("".join(written), kinds))
    return mark, char


def _until(char: str, emit: Emit, ends: tuple[str, ...]) -> Generator[None, str, tuple[str, str]]:
    while char is not END:
        held = ""
        while char is not END and any(end.startswith(held + char) for end in ends):
            held += char
            char = yield
            if held in ends:
                return held, char
        if held and char is END:
            break  # it may be the mark
        emit(held or char)
        if not held:
            char = yield
    return "", END


def as_json(written: str, kinds: frozenset[str] = ANY) -> str:
    """A value as a model writes it, in JSON."""
    try:
        value = json.loads(written, parse_constant=_refused)
    except (ValueError, RecursionError):
        return _text(written)
    kind = comparable(value)[0]
    is_text = (kind not in kinds and "string" in kinds) or (kind == "string" and not kinds >= ANY)
    return _text(written) if is_text else written.strip()


def _refused(word: str) -> Any:
    raise ValueError(word)  # NaN and the infinities are no JSON


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# -- the grammar ------------------------------------------------------------------------------------------------------


def rules(rule: str, schema: Schema) -> list[str]:
    """Rules in Lark for arguments that follow a schema, each parameter in the schema's order; `rule` is for them all.

    Raises:
        ValueError: the schema is not loosened, and cannot be enforced as a whole in this format.
    """
    whole, loose = enforceable(schema), is_loosened(schema)
    parameters = Parameters(whole)
    top = parameters.schema
    if not loose and (more := sorted(top.keys() - OBJECT - NOTES)):
        raise ValueError(_why(f"{', '.join(more)} beside properties"))
    if not parameters.named and top.get("additionalProperties") is not False:
        return [
            f"{rule}: {rule}_any*",
            rf"{rule}_any: {literal(PARAMETER)} /[^\"<>\n]{{1,64}}/ {literal(NAMED)} {rule}_rest {literal(chr(10))}",
            _any_text(f"{rule}_rest"),
        ]
    if not loose and top.get("additionalProperties", True) is not False:
        raise ValueError(_why("additionalProperties other than false"))
    needed, made, parts = top.get("required", []), [], []
    for number, (name, part) in enumerate(parameters.named.items()):
        if part is False or (NAMED[0] in name and name not in needed):
            continue
        if NAMED[0] in name or "<" in name:
            raise ValueError(_why(f"the parameter {name!r}"))
        each = f"{rule}_{number}"
        parts.append(each if name in needed else f"{each}?")
        made.append(f"{each}: {literal(PARAMETER + name + NAMED)} {each}_value {literal(chr(10))}")
        made += _value_rules(f"{each}_value", parameters, name, loose)
    return [f"{rule}: {' '.join(parts) or literal('')}", *made]


def _value_rules(rule: str, parameters: Parameters, name: str, loose: bool) -> list[str]:
    """Rules for a value and what closes it."""
    part, kinds = parameters.parts.resolved(parameters.named[name]), parameters.kinds(name)
    if "string" not in kinds:
        root = {key: parameters.schema[key] for key in ("$defs", "definitions") if key in parameters.schema}
        schema = {**root, **part} if isinstance(part, Mapping) else {**root}
        return [f"{rule}: {rule}_json {literal(CLOSES)}", f"{rule}_json: %json {schema_text(_loose(schema, loose))}"]
    if kinds == TEXT and (listed := values(part)) is not None:
        return [f"{rule}: ({' | '.join(literal(text) for text in listed)}) {literal(CLOSES)}"]
    limits = set(part) - NOTES - {"type"} if isinstance(part, Mapping) else set()
    if kinds == TEXT and limits <= {"minLength", "maxLength", "pattern"}:
        return _limited(rule, part) if limits else [_any_text(rule)]
    if not loose and (kinds != TEXT | {"null"} or limits - {"anyOf", "oneOf"} or _limits_texts(part)):
        raise ValueError(_why(f"what {name!r} may be"))
    return [_any_text(rule)]


def _limited(rule: str, part: Schema) -> list[str]:
    """A text with a length or a pattern."""
    least, most = part.get("minLength", 0), part.get("maxLength", "")
    texts = [rf"/(?s:.{{{least},{most}}})/", rf"~/(?s:.*){CLOSES_IN_REGEX}(?s:.*)/"]
    if pattern := part.get("pattern"):
        start = "" if pattern.startswith("^") else "(?s:.*)"
        end = "" if pattern.endswith("$") else "(?s:.*)"
        texts.append(f"/{start}({pattern.removeprefix('^').removesuffix('$').replace('/', chr(92) + '/')}){end}/")
    terminal = rule.upper()
    return [f"{rule}[lazy]: {terminal}", f"{terminal}: ({' & '.join(texts)}) {literal(CLOSES)}"]


def _any_text(rule: str) -> str:
    return rf"{rule}[lazy]: /(?s:.*){CLOSES_IN_REGEX}/"


def _limits_texts(part: Any) -> bool:
    """Whether one of the choices allows not every text."""
    choices = [each for key in ("anyOf", "oneOf") for each in part.get(key, [])]
    return any(set(each) - NOTES - {"type"} for each in choices if isinstance(each, Mapping))


def _loose(schema: Schema, loose: bool) -> Schema:
    return loosened(schema) if loose else schema


def _why(what: str) -> str:
    return (
        f'{what} cannot be enforced in this model\'s calls. Leave it out, or send "strict": false, with which the rest '
        "of the schema is enforced"
    )
