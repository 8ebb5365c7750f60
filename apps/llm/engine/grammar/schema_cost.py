"""Whether a JSON schema is surely cheap to compile and to follow.

llguidance's limits do not hold everywhere: a long `multipleOf`, or several patterns that must all match, keeps it busy
for hours in one call that checks no limit. So a schema is compiled in this process only if nothing in it can do that:
every keyword is one of those below, with a small value, and they are combined in ways that are compiled one by one.
All others get a process of their own (see `pool`).
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from apps.llm.schemas.enforced import FORMATS

MAX_PARTS = 400
"""Most subschemas, names and values of schemas that are surely cheap."""
MAX_LETTERS = 16_000
"""Most characters of their names and values."""

NOTES = {"title", "description", "default", "examples", "$comment", "$schema", "readOnly", "writeOnly", "deprecated"}
"""Keywords that llguidance does not read."""
LOCAL_REF = re.compile(r"#(/(\$defs|definitions)/[A-Za-z0-9_.-]+)?")
TYPES = {"null", "boolean", "integer", "number", "string", "array", "object"}

RICH_SYNTAX = re.compile(r"[^\x20-\x7e]|\(\?(?!:)|\\[^dDwWsSnrt.\-/\\+*?()\[\]{}^$|]|&|~")
"""What a plain pattern has none of: characters and classes of Unicode, flags, assertions, set operations."""
COUNTED = re.compile(r"\{(\d*)(?:,(\d*))?\}")


class Cheapness:
    """Judges schemas that are compiled together."""

    def __init__(self) -> None:
        self._parts = self._letters = 0

    def of(self, schema: Any) -> bool:
        """Whether a schema, with those judged before it, is surely cheap to compile and to follow."""
        left = [schema]
        while left:
            if not self._one(left.pop(), left):
                return False
        return True

    def _counts(self, parts: int = 1, letters: int = 0) -> bool:
        self._parts += parts
        self._letters += letters
        return self._parts <= MAX_PARTS and self._letters <= MAX_LETTERS

    def _one(self, schema: Any, left: list[Any]) -> bool:
        """Whether a schema's own keywords are cheap. Adds its subschemas to `left`."""
        if isinstance(schema, bool):
            return self._counts()
        if not isinstance(schema, dict) or not self._counts():
            return False
        keywords = {key: value for key, value in schema.items() if key not in NOTES}
        for name in ("$defs", "definitions"):
            if name in keywords and not self._named(keywords.pop(name), left):
                return False
        if not keywords:
            return True
        for alone, check in (("$ref", _local), ("anyOf", self._choices), ("oneOf", self._choices), ("allOf", _only)):
            if alone in keywords:
                return len(keywords) == 1 and check(keywords[alone], left)
        kind = keywords.pop("type", None)
        if not _known(kind):
            return False
        if "enum" in keywords or "const" in keywords:
            values = keywords.get("enum", [keywords.get("const")])
            return len(keywords) == 1 and isinstance(values, list) and all(map(self._value, values))
        if not isinstance(kind, str):
            return self._several(kind or sorted(TYPES), keywords, left)
        checks = KEYWORDS[kind]
        return all(key in checks and checks[key](self, value, left) for key, value in keywords.items()) and (
            kind != "string" or _one_condition(keywords)
        )

    def _several(self, kinds: list[str], keywords: dict[str, Any], left: list[Any]) -> bool:
        """As `_one`, where a value may be of several types: as if each had a schema with the keywords for it."""
        for kind in kinds:
            left.append({"type": kind} | {key: keywords[key] for key in KEYWORDS[kind] if key in keywords})
        return keywords.keys() <= {key for kind in kinds for key in KEYWORDS[kind]}

    def _named(self, schemas: Any, left: list[Any]) -> bool:
        """Whether these are schemas with names."""
        if not isinstance(schemas, dict) or not self._counts(len(schemas), sum(map(len, schemas))):
            return False
        left += schemas.values()
        return True

    def _choices(self, options: Any, left: list[Any]) -> bool:
        if not isinstance(options, list) or not 1 <= len(options) <= 32:
            return False
        left += options
        return True

    def _value(self, value: Any, depth: int = 0) -> bool:
        """Whether a constant is small."""
        if isinstance(value, str):
            return self._counts(1, len(value))
        if isinstance(value, list):
            return depth < 5 and self._counts() and all(self._value(one, depth + 1) for one in value)
        if isinstance(value, dict):
            named = self._counts(1 + len(value), sum(map(len, value)))
            return depth < 5 and named and all(self._value(one, depth + 1) for one in value.values())
        return (value is None or isinstance(value, bool) or _moderate(value)) and self._counts()

    def _names(self, names: Any, left: list[Any]) -> bool:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return False
        return self._counts(len(names), sum(map(len, names)))

    def _below(self, schema: Any, left: list[Any]) -> bool:
        left.append(schema)
        return True

    def _tuple(self, schemas: Any, left: list[Any]) -> bool:
        return self._choices(schemas, left)

    def _count(self, value: Any, left: list[Any]) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10_000

    def _bound(self, value: Any, left: list[Any]) -> bool:
        return _moderate(value)

    def _step(self, value: Any, left: list[Any]) -> bool:
        """`multipleOf`: following it has a state for each remainder."""
        if not _moderate(value) or value <= 0:
            return False
        _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
        assert isinstance(exponent, int)  # it is finite
        return int("".join(map(str, digits))) * 10 ** max(0, exponent) <= 1000 and exponent >= -6

    def _pattern(self, value: Any, left: list[Any]) -> bool:
        return isinstance(value, str) and _plain(value)

    def _format(self, value: Any, left: list[Any]) -> bool:
        return isinstance(value, str) and value in FORMATS


Check = Callable[[Cheapness, Any, list[Any]], bool]
_NUMBER: dict[str, Check] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), Cheapness._bound),
    "multipleOf": Cheapness._step,
}
KEYWORDS: dict[str, dict[str, Check]] = {
    "null": {},
    "boolean": {},
    "integer": _NUMBER,
    "number": _NUMBER,
    "string": {
        **dict.fromkeys(("minLength", "maxLength"), Cheapness._count),
        "pattern": Cheapness._pattern,
        "format": Cheapness._format,
    },
    "array": {
        **dict.fromkeys(("minItems", "maxItems"), Cheapness._count),
        "items": Cheapness._below,
        "prefixItems": Cheapness._tuple,
    },
    "object": {
        "properties": Cheapness._named,
        "required": Cheapness._names,
        "additionalProperties": Cheapness._below,
    },
}
"""Keywords of each type, and which of their values are surely cheap."""


def _known(kind: Any) -> bool:
    """Whether these are types, or none is given."""
    kinds = kind if isinstance(kind, list) else [kind]
    return kind is None or (len(kinds) <= len(TYPES) and all(isinstance(one, str) and one in TYPES for one in kinds))


def _local(target: Any, left: list[Any]) -> bool:
    return isinstance(target, str) and LOCAL_REF.fullmatch(target) is not None


def _only(schemas: Any, left: list[Any]) -> bool:
    """`allOf` with a single schema; several are merged, which may multiply them."""
    if not isinstance(schemas, list) or len(schemas) != 1:
        return False
    left += schemas
    return True


def _moderate(value: Any) -> bool:
    """Whether this is a number of ordinary size."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= 2**53 and len(repr(value)) <= 20  # neither NaN nor infinite


def _one_condition(keywords: Mapping[str, Any]) -> bool:
    """Of a string: what must hold together is compiled into products. A pattern or a format may have lengths beside it
    where these are small."""
    if "pattern" in keywords and "format" in keywords:
        return False
    lengths = [keywords[name] for name in ("minLength", "maxLength") if name in keywords]
    if "pattern" not in keywords and "format" not in keywords:
        return True
    return all(length <= 1000 for length in lengths) and (
        not lengths or "pattern" not in keywords or _repeats(keywords["pattern"]) <= 64
    )


def _plain(pattern: str) -> bool:
    """Whether a regular expression is short, and repeats nothing often."""
    if len(pattern) > 200 or RICH_SYNTAX.search(pattern) or pattern.count("|") > 32:
        return False
    return len(re.findall(r"[*+]|,\}", pattern)) <= 8 and _repeats(pattern) <= 1000


def _repeats(pattern: str) -> int:
    """At most how often a pattern's counted repetitions repeat something, nested ones multiplied."""
    product = 1
    for least, most in COUNTED.findall(pattern):
        product = min(product * max(1, int((most or least or "1")[:6])), 10**9)
    return product
