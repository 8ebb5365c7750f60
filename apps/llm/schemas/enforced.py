"""JSON schemas as zod, pydantic and Rust write them, in the keywords that llguidance reads.

`enforceable` writes a schema in another way that allows the same, where there is one:

    a `format` of an unknown name   an annotation, as JSON Schema has it
    propertyNames                   properties or patternProperties
    not                             fewer types or values; {"not": {}} allows nothing
    oneOf of disjoint choices       anyOf
    if on a property's values       anyOf of the two cases; so are dependentRequired and dependentSchemas
    contains all or any items       minItems, maxItems
    unevaluated...: false           additional...: false, where nothing else could have evaluated
    zod's and pydantic's patterns   the same without look-around

What is left of these is refused by llguidance, by name. `loosened` lets it ignore that.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from apps.llm.schemas.parts import NOTES, Schema, SchemaParts, comparable, kinds, values

FORMATS = frozenset(
    {*("date-time", "time", "date", "duration", "email", "hostname"), *("ipv4", "ipv6", "uuid", "uri", "unknown")}
)
"""Those that llguidance enforces."""
ONE = (
    *("additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "propertyNames"),
    *("items", "contains", "not", "if", "then", "else"),
)
SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value is a schema, a list of schemas, schemas by name."""
ROOT = ("$defs", "definitions", "$schema", "$id")
"""Keywords that stay at a schema's root when the rest is put into a choice."""
LETTERS = ("A-Za-z", "a-zA-Z")
PATTERNS = {
    # zod's email: no dot at the beginning of the name, none twice, none nor ' at its end
    rf"^(?!\.)(?!.*\.\.)([{az}0-9_'+\-\.]*)[{az}0-9_+-]@([{az}0-9][{az}0-9\-]*\.)+[{az}]{{2,}}$": (
        rf"^([{az}0-9_'+\-]+\.)*[{az}0-9_'+\-]*[{az}0-9_+\-]@([{az}0-9][{az}0-9\-]*\.)+[{az}]{{2,}}$"
    )
    for az in LETTERS
} | {
    # pydantic's Decimal: a sign, and digits with a point among them
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$"
}
"""Patterns that libraries write with look-around, which llguidance has not, and the same without it."""
LOOKING_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]")
VALUES = frozenset({"type", "const", "enum"})
EVALUATING = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "contains")
QUOTES = '", "'
LARGEST_COPY = 4000
"""Characters of a schema that is repeated in both cases of a condition."""


def enforceable(schema: Schema) -> dict[str, Any]:
    """The schema, allowing the same, in keywords that llguidance reads, as far as there are such."""
    try:
        rewritten = _Rewriter(schema).rewritten(schema)
    except (TypeError, ValueError, AttributeError, KeyError):  # it is no schema; llguidance says why
        rewritten = schema
    found = rewritten if isinstance(rewritten, dict) else schema
    return {key: value for key, value in found.items() if key != "x-guidance"}


def explained(problem: str) -> str:
    """Why llguidance cannot follow a schema, in words that name the keyword and the fix."""
    if found := re.match(r'Unimplemented keys: \["(.*)"\]', problem):
        what = f"{', '.join(found[1].split(QUOTES))} cannot be enforced"
    elif "look-around" in problem or "backreferences" in problem:
        what = "pattern cannot be enforced where it looks around, as (?=...) and (?!...) do, or back, as \\1 does"
    elif problem.startswith("oneOf constraints are not supported"):
        what = "oneOf cannot be enforced where two of its schemas may allow the same value: anyOf can"
    else:
        return problem
    return f'{what}. Leave it out, or send "strict": false, with which the rest of the schema is enforced'


def loosened(schema: Schema) -> dict[str, Any]:
    """The schema, of which only what can be enforced will be: OpenAI's `strict: false`."""
    return {**schema, "x-guidance": {"lenient": True}}


def is_loosened(schema: Schema) -> bool:
    options = schema.get("x-guidance")
    return isinstance(options, Mapping) and options.get("lenient") is True


class _Rewriter:
    def __init__(self, root: Schema):
        self._parts, self._loosened = SchemaParts(root), is_loosened(root)

    def rewritten(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        new = dict(schema)
        for key in ONE:
            if isinstance(new.get(key), Mapping):
                new[key] = self.rewritten(new[key])
        for key in SEVERAL:
            if isinstance(new.get(key), list):
                new[key] = [self.rewritten(each) for each in new[key]]
        for key in NAMED:
            if isinstance(new.get(key), Mapping):
                new[key] = {name: self.rewritten(each) for name, each in new[key].items()}
        if isinstance(new.get("format"), str) and new["format"] not in FORMATS:
            del new["format"]
        if isinstance(pattern := new.get("pattern"), str):
            new["pattern"] = PATTERNS.get(pattern, pattern)
            if self._loosened and LOOKING_AROUND.search(new["pattern"]):
                del new["pattern"]
        if new.get("uniqueItems") is False or (new.get("uniqueItems") and _at_most_one(new)):
            del new["uniqueItems"]
        for key, rule in RULES.items():
            if key in new:
                found = rule(self, new)
                if not isinstance(found, dict):
                    return found
                new = found
        return new

    # -- rules: each gets a schema that has its keyword, and returns one that allows the same -----------------------

    def _not(self, schema: dict[str, Any]) -> Any:
        barred, rest = schema["not"], {key: value for key, value in schema.items() if key != "not"}
        if barred is False:
            return rest
        if barred is True or (isinstance(barred, dict) and not barred.keys() - NOTES):
            return False
        if not isinstance(barred, dict):
            return schema
        meant = {key: value for key, value in barred.items() if key not in NOTES}
        if meant == {"const": None} or meant == {"enum": [None]}:
            meant = {"type": "null"}
        if meant.keys() == {"type"} and (out := kinds(meant["type"])) is not None:
            before = kinds(rest.get("type"))
            if before is None or ("integer" in out and "number" in before and "number" not in out):
                return schema  # a number that is no integer has no type of its own
            if "number" in out:
                out = [*out, "integer"]
            left = [kind for kind in before if kind not in out]
            return rest | {"type": left[0] if len(left) == 1 else left} if left else False
        if meant.keys() <= {"const", "enum"} and (listed := values(rest)) is not None:
            barred_values = set(map(comparable, values(meant) or []))
            kept = [value for value in listed if comparable(value) not in barred_values]
            rest.pop("const", None)
            return rest | {"enum": kept} if kept else False
        return schema

    def _property_names(self, schema: dict[str, Any]) -> Any:
        rest = {key: value for key, value in schema.items() if key != "propertyNames"}
        names = self._parts.resolved(schema["propertyNames"])
        if names is True:
            return rest
        if not isinstance(names, dict) or "patternProperties" in rest:
            return schema
        names = {key: value for key, value in names.items() if key not in NOTES and (key, value) != ("type", "string")}
        if not names:
            return rest
        named, others = rest.get("properties", {}), rest.get("additionalProperties", True)
        if names.keys() <= {"enum", "const"} and (allowed := values(names)) is not None:
            listed = {name: named.get(name, others) for name in allowed if isinstance(name, str)}
            barred = {name: False for name in named if name not in listed}
            return rest | {"properties": listed | barred, "additionalProperties": False}
        if (
            named
            or not names.keys() <= {"pattern", "minLength", "maxLength"}
            or ("pattern" in names and len(names) > 1)
        ):
            return schema
        pattern = names.get("pattern") or rf"^[\s\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
        return rest | {"patternProperties": {pattern: others}, "additionalProperties": False}

    def _one_of(self, schema: dict[str, Any]) -> Any:
        choices = schema["oneOf"]
        if not isinstance(choices, list) or "anyOf" in schema or not self._parts.all_disjoint(choices):
            return schema
        return {("anyOf" if key == "oneOf" else key): value for key, value in schema.items()}

    def _contains(self, schema: dict[str, Any]) -> Any:
        wanted, least, most = schema["contains"], schema.get("minContains", 1), schema.get("maxContains")
        keys = ("contains", "minContains", "maxContains")
        rest = {key: value for key, value in schema.items() if key not in keys}
        if least == 0 and most is None:
            return rest
        if wanted in (True, {}) or (wanted == rest.get("items") and "prefixItems" not in rest):
            rest["minItems"] = max(least, rest.get("minItems", 0))
            return rest if most is None else rest | {"maxItems": min(most, rest.get("maxItems", most))}
        return schema

    def _if(self, schema: dict[str, Any]) -> Any:
        keys = ("if", "then", "else")
        base = {key: value for key, value in schema.items() if key not in keys}
        condition, then, otherwise = schema["if"], schema.get("then", True), schema.get("else", True)
        if then in (True, {}) and otherwise in (True, {}):
            return base
        if not isinstance(condition, dict):
            return _both(base, then if condition else otherwise)
        named, required = condition.get("properties"), condition.get("required", [])
        if (
            not isinstance(named, dict)
            or len(named) != 1
            or condition.keys() - NOTES - {"properties", "required", "type"}
        ):
            return schema
        [(name, wanted)] = named.items()
        there = self._parts.resolved(base.get("properties", {}).get(name))
        listed = [True, False] if there in ({"type": "boolean"},) else values(there)
        meant = values(wanted) if isinstance(wanted, dict) and wanted.keys() <= VALUES | NOTES else None
        if listed is None or meant is None or required not in ([], [name]) or base.get("type") != "object":
            return schema
        chosen = set(map(comparable, meant))
        is_so = _one_of([value for value in listed if comparable(value) in chosen])
        is_not = _one_of([value for value in listed if comparable(value) not in chosen])
        # Without `required`, an object without the property meets the condition.
        cases: list[tuple[Schema, Any]] = [
            ({"properties": {name: is_so}, "required": required}, then),
            ({"properties": {name: is_not}, "required": [] if required else [name]}, otherwise),
        ]
        return self._cases(base, cases) or schema

    def _dependent(self, schema: dict[str, Any]) -> Any:
        keys = ("dependentRequired", "dependentSchemas", "dependencies")
        given = [(name, each) for key in keys for name, each in _items(schema.get(key))]
        base = {key: value for key, value in schema.items() if key not in keys}
        if schema.get("type") != "object":
            return schema
        for name, needed in given:
            then = {"required": needed} if isinstance(needed, list) else self.rewritten(needed)
            cases: list[tuple[Schema, Any]] = [
                ({"properties": {name: False}}, True),
                ({"required": [name]}, then),
            ]
            base = self._cases(base, cases)
            if not base:
                return schema
        return base

    def _cases(self, base: dict[str, Any], cases: Sequence[tuple[Schema, Any]]) -> Any:
        """The base, in one of two cases. None if it is too large to be repeated in both."""
        top = {key: value for key, value in base.items() if key in ROOT}
        inner = {key: value for key, value in base.items() if key not in ROOT}
        if len(json.dumps(inner, default=str)) > LARGEST_COPY:
            return None
        choices = [{"allOf": [inner, case, *([] if then in (True, {}) else [then])]} for case, then in cases]
        possible = [c for c in choices if not any(part is False for part in c["allOf"]) and not _empty(c["allOf"][1])]
        return {**top, "anyOf": possible} if possible else False

    def _unevaluated(self, schema: dict[str, Any]) -> Any:
        for key, other in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if key in schema and (other in schema or not any(each in schema for each in EVALUATING)):
                value = schema.pop(key)
                schema.setdefault(other, value)
        return schema


RULES: dict[str, Callable[[_Rewriter, dict[str, Any]], Any]] = {
    "not": _Rewriter._not,
    "propertyNames": _Rewriter._property_names,
    "oneOf": _Rewriter._one_of,
    "contains": _Rewriter._contains,
    "unevaluatedProperties": _Rewriter._unevaluated,
    "unevaluatedItems": _Rewriter._unevaluated,
    "if": _Rewriter._if,
    "dependentRequired": _Rewriter._dependent,
    "dependentSchemas": _Rewriter._dependent,
    "dependencies": _Rewriter._dependent,
}


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    yield from value.items() if isinstance(value, Mapping) else ()


def _both(base: dict[str, Any], other: Any) -> Any:
    return (
        base if other in (True, {}) else False if other is False else {**base, "allOf": [*base.get("allOf", []), other]}
    )


def _one_of(listed: list[Any]) -> Any:
    return {"enum": listed} if listed else False


def _empty(case: Schema) -> bool:
    """Whether a case requires a property and allows none of its values."""
    return any(case.get("properties", {}).get(name) is False for name in case.get("required", []))


def _at_most_one(schema: Schema) -> bool:
    most = schema.get("maxItems")
    return isinstance(most, int) and most <= 1
