"""Arguments between tags, one after another, as Muse Glimmer and Qwen3-Coder write them.

Texts and numbers are as they are, lists and objects are JSON. So a value alone does not say whether it is a text: its
tool's schema does. Where that leaves it open, what can be read as JSON is JSON, as in vLLM's parser for Muse Glimmer.
Its parser for Qwen3-Coder takes a parameter that the schema does not have for a text.
"""

import json
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from apps.llm.chat.call_format import literal
from apps.llm.chat.machines.values import Emit, blank, exactly
from apps.llm.chat.reader import END, NotACall
from apps.llm.schemas.enforced import enforceable, is_loosened, loosened
from apps.llm.schemas.parts import NOTES, TYPES, SchemaParts, comparable, values
from apps.llm.schemas.written import Schema, schema_text

ANY = frozenset(TYPES) - {"integer"}  # which is a number
TEXT = frozenset({"string"})
OBJECT = frozenset({"properties", "required", "additionalProperties", "type", "$defs", "definitions", "$schema", "$id"})
"""Keywords of an object's schema that its rules follow, or that say nothing of its values."""


class Tags(NamedTuple):
    """What is around a value."""

    opens: str  # before its name
    named: str  # after it
    closes: str
    on_lines: bool = False  # whether line breaks stand between the tags and the value

    @property
    def ends(self) -> tuple[str, ...]:
        """What ends a value, with what is none of it."""
        return ("\n" + self.closes, self.closes) if self.on_lines else (self.closes,)

    @property
    def closing(self) -> str:
        """As the grammar has it."""
        return self.ends[0]


class Parameters:
    """What a tool's schema says of its parameters."""

    def __init__(self, schema: Schema):
        self.parts = SchemaParts(schema)
        whole = self.parts.resolved(schema)
        self.schema: Schema = whole if isinstance(whole, Mapping) else {}  # a reference may lead anywhere
        found = self.schema.get("properties")
        self.named: Mapping[str, Any] = found if isinstance(found, Mapping) else {}

    def kinds(self, name: str) -> frozenset[str]:
        """The types that a parameter may have; an integer is a number."""
        return frozenset(self.parts.kinds_of(self.parts.resolved(self.named.get(name, True))))


ANYTHING = Parameters({})


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


def name_before(char: str, named: str) -> Generator[None, str, tuple[str, str]]:
    """A name up to `named`, and the character after that."""
    name = ""
    while char != named[0]:
        if char is END or char in "<>\n":
            raise NotACall(char)
        name += char
        char = yield
    char = yield from exactly(char, named)
    return name, char


def read_arguments(
    char: str, emit: Emit, tags: Tags, parameters: Parameters, closes: str, broken_by: tuple[str, ...]
) -> Generator[None, str, tuple[bool, str]]:
    """Parameters up to `closes`, as a JSON object: whether that was there, and the character after it.

    Args:
        broken_by: marks that no value has: one of them ends the arguments, too.
    """
    emit("{")
    between = ""
    while True:
        char = yield from blank(char)
        found, char = yield from one_of(char, (tags.opens, closes))
        if found != tags.opens:
            break
        name, char = yield from name_before(char, tags.named)
        if tags.on_lines and char == "\n":
            char = yield
        emit(f"{between}{_text(name)}: ")
        between = ", "
        mark, char = yield from _value(char, emit, parameters.kinds(name), (*tags.ends, *broken_by))
        if not mark:  # cut short: what is told stays true
            return False, END
        if mark not in tags.ends:
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
    """Emits the text before the first of these marks; the mark, and the character after it."""
    held = ""  # it may be the beginning of one, of which nothing is told
    while char is not END:
        held += char
        while held and not any(end.startswith(held) for end in ends):
            emit(held[0])
            held = held[1:]
        char = yield
        if held in ends:
            return held, char
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


def rules(rule: str, schema: Schema, tags: Tags) -> list[str]:
    """Rules in Lark for arguments that follow a schema, each parameter in the schema's order; `rule` is for them all.

    Raises:
        ValueError: the schema is not loosened, and cannot be enforced as a whole in this format.
    """
    try:
        return _Rules(schema, tags).of_all(rule)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"a keyword has a value of the wrong type: {error}") from None


class _Rules:
    def __init__(self, schema: Schema, tags: Tags):
        self.loose, self.parameters, self.tags = is_loosened(schema), Parameters(enforceable(schema)), tags
        self.after_name = tags.named + ("\n" if tags.on_lines else "")
        self.closes_in_regex = tags.closes.replace("/", r"\/")

    def of_all(self, rule: str) -> list[str]:
        top, tags = self.parameters.schema, self.tags
        if not self.loose and (more := sorted(top.keys() - OBJECT - NOTES)):
            raise ValueError(_why(f"{', '.join(more)} beside properties"))
        if not self.parameters.named and top.get("additionalProperties") is not False:
            name = rf"{literal(tags.opens)} /[^\"<>\n]{{1,64}}/ {literal(self.after_name)}"
            return [
                f"{rule}: {rule}_any*",
                f"{rule}_any: {name} {rule}_rest {literal(chr(10))}",
                self._any_text(f"{rule}_rest"),
            ]
        if not self.loose and top.get("additionalProperties", True) is not False:
            raise ValueError(_why("additionalProperties other than false"))
        needed, made, parts = top.get("required", []), [], []
        for number, (name, part) in enumerate(self.parameters.named.items()):
            bad = any(char in name for char in '"<>')
            if part is False or (bad and name not in needed):
                continue
            if bad:
                raise ValueError(_why(f"the parameter {name!r}"))
            each = f"{rule}_{number}"
            parts.append(each if name in needed else f"{each}?")
            made.append(f"{each}: {literal(tags.opens + name + self.after_name)} {each}_value {literal(chr(10))}")
            made += self._value(f"{each}_value", name)
        return [f"{rule}: {' '.join(parts) or literal('')}", *made]

    def _value(self, rule: str, name: str) -> list[str]:
        """Rules for a value and what closes it."""
        parameters, closes = self.parameters, literal(self.tags.closing)
        part, kinds = parameters.parts.resolved(parameters.named[name]), parameters.kinds(name)
        if "string" not in kinds:
            root = {key: parameters.schema[key] for key in ("$defs", "definitions") if key in parameters.schema}
            schema = {**root, **part} if isinstance(part, Mapping) else {**root}
            text = schema_text(loosened(schema) if self.loose else schema)
            return [f"{rule}: {rule}_json {closes}", f"{rule}_json: %json {text}"]
        if kinds == TEXT and (listed := values(part)) is not None:
            return [f"{rule}: ({' | '.join(literal(text) for text in listed)}) {closes}"]
        limits = set(part) - NOTES - {"type"} if isinstance(part, Mapping) else set()
        if kinds == TEXT and limits <= {"minLength", "maxLength", "pattern"}:
            return self._limited(rule, part) if limits else [self._any_text(rule)]
        if not self.loose and (kinds != TEXT | {"null"} or limits - {"anyOf", "oneOf"} or _limits_texts(part)):
            raise ValueError(_why(f"what {name!r} may be"))
        return [self._any_text(rule)]

    def _limited(self, rule: str, part: Schema) -> list[str]:
        """A text with a length or a pattern."""
        least, most = part.get("minLength", 0), part.get("maxLength", "")
        texts = [rf"/(?s:.{{{least},{most}}})/", rf"~/(?s:.*){self.closes_in_regex}(?s:.*)/"]
        if pattern := part.get("pattern"):
            start = "" if pattern.startswith("^") else "(?s:.*)"
            end = "" if pattern.endswith("$") else "(?s:.*)"
            inner = pattern.removeprefix("^").removesuffix("$").replace("/", r"\/")
            texts.append(f"/{start}({inner}){end}/")
        terminal = rule.upper()
        return [f"{rule}[lazy]: {terminal}", f"{terminal}: ({' & '.join(texts)}) {literal(self.tags.closing)}"]

    def _any_text(self, rule: str) -> str:
        return rf"{rule}[lazy]: /(?s:.*){self.closes_in_regex}/"


def _limits_texts(part: Any) -> bool:
    """Whether one of the choices allows not every text."""
    choices = [each for key in ("anyOf", "oneOf") for each in part.get(key, [])]
    return any(set(each) - NOTES - {"type"} for each in choices if isinstance(each, Mapping))


def _why(what: str) -> str:
    return (
        f'{what} cannot be enforced in this model\'s calls. Leave it out, or send "strict": false, with which the rest '
        "of the schema is enforced"
    )
