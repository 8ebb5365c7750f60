"""What the parts of a JSON schema allow: types, values, and whether two parts surely have no value in common."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
NOTES = frozenset({"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"})
MOST_WORK = 400_000
"""Names that are compared within one schema; a pair of schemas counts as ten, a value as a hundredth."""

Schema = Mapping[str, Any]


class SchemaParts:
    """The parts of one schema, `root`, to which their references lead."""

    def __init__(self, root: Schema):
        self._root, self._work = root, 0
        self._seen: dict[tuple[int, int], tuple[Any, set[str]]] = {}  # the kinds of each schema, by its id and `left`
        self._listed: dict[int, tuple[Any, frozenset[tuple[str, str]] | None]] = {}  # the values of each, by its id

    def resolved(self, schema: Any, left: int = 4) -> Any:
        """The schema that a local reference stands for."""
        alone = isinstance(schema, Mapping) and not schema.keys() - NOTES - {"$ref"}
        if left and alone and isinstance(schema.get("$ref"), str):
            found = re.fullmatch(r"#/(\$defs|definitions)/([^/~%]+)", schema["$ref"])
            there = self._root.get(found[1]) if found else None
            if found and isinstance(there, Mapping) and found[2] in there:
                return self.resolved(there[found[2]], left - 1)
        return schema

    def all_disjoint(self, choices: Sequence[Any]) -> bool:
        """Whether surely no value is allowed by two of these."""
        resolved = [self.resolved(choice) for choice in choices]
        return all(self._disjoint(a, b) for i, a in enumerate(resolved) for b in resolved[:i])

    def _disjoint(self, a: Any, b: Any, left: int = 3) -> bool:
        self._work += 10
        if a is False or b is False:
            return True
        if not left or self._work > MOST_WORK or not isinstance(a, Mapping) or not isinstance(b, Mapping):
            return False
        kinds = self.kinds_of(a) & self.kinds_of(b)
        if not kinds:
            return True
        one, other = self._values(a), self._values(b)
        if one is not None and other is not None:
            self._work += min(len(one), len(other)) // 100
            return one.isdisjoint(other)
        return kinds == {"object"} and (self._tells(a, b, left) or self._tells(b, a, left))

    def _tells(self, a: Schema, b: Schema, left: int) -> bool:
        """Whether a property that `a` requires tells its objects from those of `b`."""
        mine, theirs = a.get("properties", {}), b.get("properties", {})
        needed = set(b.get("required", []))
        self._work += len(needed) + len(a.get("required", []))
        for name in a.get("required", []):
            if name not in theirs:
                if b.get("additionalProperties") is False and "patternProperties" not in b:
                    return True
            elif (
                name in needed
                and name in mine
                and self._disjoint(self.resolved(mine[name]), self.resolved(theirs[name]), left - 1)
            ):
                return True
        return False

    def _values(self, schema: Any) -> frozenset[tuple[str, str]] | None:
        """As `values`, so that they can be compared."""
        if id(schema) not in self._listed:
            listed = values(schema)
            self._listed[id(schema)] = schema, None if listed is None else frozenset(map(comparable, listed))
        return self._listed[id(schema)][1]

    def kinds_of(self, schema: Any, left: int = 3) -> set[str]:
        """The types that a schema allows; an integer is a number."""
        if (id(schema), left) not in self._seen:
            self._seen[id(schema), left] = schema, self._kinds_found(schema, left)  # held, so that its id stays its own
        return self._seen[id(schema), left][1]

    def _kinds_found(self, schema: Any, left: int) -> set[str]:
        if not isinstance(schema, Mapping):
            return set(TYPES) if schema else set()
        if (listed := self._values(schema)) is not None:
            found = {kind for kind, _ in listed}
        else:
            found = set(kinds(schema.get("type")) or TYPES)
        if "integer" in found:
            found = found - {"integer"} | {"number"}
        for key in ("anyOf", "oneOf"):
            if left and isinstance(schema.get(key), list):
                parts = [self.kinds_of(self.resolved(each), left - 1) for each in schema[key]]
                found &= set().union(*parts)
        return found


def kinds(kind: Any) -> list[str] | None:
    """The types that the keyword `type` lists; all without it, None if one is none."""
    found = list(TYPES) if kind is None else kind if isinstance(kind, list) else [kind]
    return found if all(isinstance(each, str) and each in TYPES for each in found) else None


def values(schema: Any) -> list[Any] | None:
    """The values that `const` or `enum` lists; None without them."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    return [schema["const"]] if "const" in schema else None


def comparable(value: Any) -> tuple[str, str]:
    """A value's type and text: equal where JSON's values are."""
    if isinstance(value, bool):
        return "boolean", str(value)
    if isinstance(value, int | float):
        return "number", repr(float(value)) if abs(value) < 2**53 else repr(value)
    if isinstance(value, str):
        return "string", value
    kind = "null" if value is None else "array" if isinstance(value, list) else "object"
    return kind, json.dumps(value, sort_keys=True)
