"""Schemas are rewritten for llguidance without a change of what they allow. The oracle: the package jsonschema, which
says of each value whether the schema as it was written allows it; llguidance must allow the same texts."""

import enum
import itertools
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import pytest
from pydantic import BaseModel, TypeAdapter

import apps.llm
from apps.llm.schemas.enforced import PATTERNS, enforceable, explained, is_loosened, loosened
from apps.llm.schemas.written import schema_text

TOKENIZER = llguidance.LLTokenizer((Path(apps.llm.__file__).parent / "demo/model/tokenizer.json").read_text())


def matcher(schema: Any) -> llguidance.LLMatcher:
    grammar = f'{{"grammars": [{{"json_schema": {schema_text(schema)}}}]}}'
    return llguidance.LLMatcher(TOKENIZER, grammar, log_level=0)


def allows(compiled: llguidance.LLMatcher, value: Any) -> bool:
    one = compiled.deep_copy()
    tokens = TOKENIZER.tokenize_str(json.dumps(value, separators=(",", ":")))
    return one.try_consume_tokens(tokens) == len(tokens) and one.is_accepting()


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Circle(BaseModel):
    kind: str = "circle"
    radius: int


def obj(required: str = "", closed: bool = True, **named: Any) -> dict[str, Any]:
    whole = {"type": "object", "properties": named, "required": required.split()}
    return whole | ({"additionalProperties": False} if closed else {})


INT, TEXT = {"type": "integer"}, {"type": "string", "pattern": "^[a-c]{0,3}$"}
KIND = {"enum": ["a", "b", "c"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "unknown formats": obj("a", a=TEXT | {"format": "cuid2"}, b={"type": "integer", "format": "int64"}),
    "names as zod writes records": obj() | {"propertyNames": {"type": "string"}, "additionalProperties": INT},
    "names of an enum, as pydantic refers to it": TypeAdapter(dict[Color, int]).json_schema(),
    "names of a pattern": {"type": "object", "propertyNames": {"pattern": "^[ab]+$"}, "additionalProperties": INT},
    "names of a length": {"type": "object", "propertyNames": {"minLength": 2}, "additionalProperties": INT},
    "never": obj("a", a=INT) | {"additionalProperties": {"not": {}}},
    "not of a type": {"not": {"type": "string"}, "type": ["string", "integer", "null"]},
    "not null": {"not": {"const": None}, "enum": [None, "a", 1]},
    "not some values": {"enum": ["a", "b", "c", 1], "not": {"enum": ["b", 1.0]}},
    "not no value": {"type": "integer", "not": False},
    "tags by reference, as Rust and OpenAPI write them": {
        "oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}],
        "$defs": {"x": obj("k", k={"const": "a"}, n=INT), "y": obj("k", k={"const": "b"}, t=TEXT)},
    },
    "tags that are names, as Rust writes them": {"oneOf": [obj("a", a=INT), obj("b", b=TEXT), {"enum": ["a"]}]},
    "types and values": {"oneOf": [{"enum": ["a"]}, INT, {"type": "null"}, {"type": "array", "items": INT}]},
    "if with else": obj("k n", k=KIND, n=INT, t=TEXT)
    | {"if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["t"]}, "else": {"properties": {"t": False}}},
    "if on what may be absent": obj(k=KIND, n=INT, t=TEXT)
    | {"if": {"properties": {"k": {"enum": ["a", "b"]}}, "required": ["k"]}, "then": {"required": ["n"]}},
    "if without required": obj(k=KIND, n=INT)
    | {"if": {"properties": {"k": {"const": "a"}}}, "else": {"required": ["n"]}},
    "if of a boolean": obj("k", k={"type": "boolean"}, n=INT)
    | {"if": {"properties": {"k": {"const": True}}}, "then": {"required": ["n"]}},
    "if that says nothing": obj(n=INT) | {"if": {"required": ["n"]}},
    "one needs another": obj(k=KIND, n=INT, t=TEXT) | {"dependentRequired": {"k": ["n"], "t": ["n", "k"]}},
    "one needs a schema": obj(k=KIND, n=INT) | {"dependentSchemas": {"k": {"properties": {"n": {"const": 1}}}}},
    "contains something": {"type": "array", "items": INT, "contains": {}, "maxItems": 2},
    "contains its items": {"type": "array", "items": INT, "contains": INT, "minContains": 2, "maxItems": 3},
    "unevaluated": obj("n", closed=False, n=INT) | {"unevaluatedProperties": False},
    "at most one is unique": {"type": "array", "items": INT, "uniqueItems": True, "maxItems": 1},
}  # fmt: skip
SCALARS: list[Any] = [None, True, False, 0, 1, -3, 1.5, "", "a", "b", "abc", "red"]
NAMES = {"k": ["a", "b", "c", True, False], "n": [1, 2, "a"], "t": ["a", "zz"], "a": [1, "a"], "b": [1, "a"]}
NAMES |= {"red": [1], "ab": [1, "x"]}


def values() -> list[Any]:
    found = SCALARS + [list(each) for size in range(4) for each in itertools.product([1, "a"], repeat=size)]
    for size in range(4):
        for names in itertools.combinations(NAMES, size):
            found += [dict(zip(names, each)) for each in itertools.product(*(NAMES[name] for name in names))]
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_enforced_is_what_the_schema_says(name: str) -> None:
    schema = SCHEMAS[name]
    validator, compiled = jsonschema.Draft202012Validator(schema), matcher(schema)
    assert not compiled.is_error(), compiled.get_error()
    by_order: dict[bool, int] = {True: 0, False: 0}
    for value in values():
        wanted = validator.is_valid(value)
        orders = [value] if not isinstance(value, dict) else [dict(o) for o in itertools.permutations(value.items())]
        # Members may come in one order: the schema's.
        assert any(allows(compiled, each) for each in orders) == wanted, (value, enforceable(schema))
        by_order[wanted] += 1
    assert all(by_order.values()), "values of both kinds were tried"


CANNOT = {
    "uniqueItems": TypeAdapter(set[int]).json_schema(),
    "contains": {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 1}},
    "not": {"type": "string", "not": {"pattern": "^a"}},
    "if": obj(n=INT) | {"if": {"properties": {"n": {"minimum": 3}}}, "then": {"required": ["t"]}},
    "propertyNames": obj(n=INT) | {"propertyNames": {"pattern": "n"}},
    "oneOf": {"oneOf": [INT, {"type": "number"}]},
    "pattern": obj(a={"type": "string", "pattern": r"^(?=.*\d)[a-z\d]+$"}),
    "unevaluatedProperties": {"allOf": [obj(closed=False, n=INT)], "unevaluatedProperties": False},
}


@pytest.mark.parametrize("keyword", CANNOT)
def test_what_cannot_be_enforced_is_named_and_can_be_left_out(keyword: str) -> None:
    refused = matcher(CANNOT[keyword])
    assert refused.is_error()
    told = explained(refused.get_error())
    assert keyword in told and '"strict": false' in told
    assert not matcher(loosened(CANNOT[keyword])).is_error()


NAMES_OF_PATTERNS = [
    "a",
    "7",
    ".",
    "'",
    "-",
    "a.b",
    "a..b",
    "a.b'",
    "+",
    "+7",
    "-.5",
    "7.",
    "7.7.7",
    "",
    "a_b",
    "'a",
    "a'.",
]
HOSTS = ["", "@", "@b.co", "@b.c", "@b", "@-b.co", "@b-.co", "@b..co", "@b.c0", "@x.b.com"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_without_look_around_is_the_same(pattern: str) -> None:
    """The oracle: Python's re, which looks around."""
    texts = [name + host for name in NAMES_OF_PATTERNS for host in HOSTS]
    wanted = [bool(re.search(pattern, text)) for text in texts]
    assert [bool(re.search(PATTERNS[pattern], text)) for text in texts] == wanted and {*wanted} == {True, False}
    compiled = matcher({"type": "string", "pattern": pattern})
    assert [allows(compiled, text) for text in texts] == wanted


def test_an_email_as_zod_writes_it() -> None:
    pattern = next(iter(PATTERNS))
    compiled = matcher(obj("mail", mail={"type": "string", "format": "email", "pattern": pattern}))
    assert allows(compiled, {"mail": "a.b@c.org"}) and not allows(compiled, {"mail": "a..b@c.org"})


def test_the_rest_of_a_loosened_schema_is_enforced() -> None:
    compiled = matcher(loosened(TypeAdapter(set[int]).json_schema()))
    assert allows(compiled, [1, 1]) and not allows(compiled, ["a"])
    assert is_loosened(loosened({})) and not is_loosened({"x-guidance": 3})


def test_what_is_no_schema_is_llguidances_to_refuse() -> None:
    names = {"type": "object", "dependentRequired": {"a": 3}, "propertyNames": {"$ref": "#/$defs/none"}}
    for wrong in ({"type": "object", "properties": 3}, {"oneOf": 7}, {"not": []}, {"enum": 1, "not": {}}, names):
        assert matcher(wrong).is_error(), wrong


def test_what_is_no_keyword_is_left_alone() -> None:
    """Names of properties and values of enums may look like keywords."""
    schema = obj("not", **{"not": INT, "format": {"const": {"format": "x", "not": {}}}, "if": TEXT})
    assert enforceable(schema) == schema


def test_conditions_that_nest_do_not_grow_without_bound() -> None:
    schema: dict[str, Any] = obj(k=KIND)
    for _ in range(40):
        schema = obj(k=KIND, n=schema) | {"if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["n"]}}
    assert len(schema_text(schema)) < 100_000
    many = {"oneOf": [obj(f"a{i}", closed=False, **{f"a{i}": INT}) for i in range(1000)]}
    assert "oneOf" in enforceable(many)


def test_large_schemas_are_rewritten_with_work_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is made comparable once or twice, however many others it is compared with."""
    from apps.llm.schemas import enforced, parts

    counted, comparable = [0], parts.comparable

    class Counted(tuple[str, str]):
        """What `comparable` makes, counting how often it is compared."""

        __hash__ = tuple.__hash__

        def __eq__(self, other: object) -> bool:
            counted[0] += 1
            return tuple.__eq__(self, other)  # type: ignore[arg-type]

    def counting(value: Any) -> Any:
        counted[0] += 1
        return Counted(comparable(value))

    monkeypatch.setattr(parts, "comparable", counting)
    monkeypatch.setattr(enforced, "comparable", counting)
    values = [f"v{i}" for i in range(4000)]
    barred = {"enum": values, "not": {"enum": [f"w{i}" for i in range(4000)]}}
    assert enforceable(barred) == {"enum": values}
    chosen = {"type": "object", "properties": {"a": {"enum": values}}, "if": {"properties": {"a": {"enum": values}}}}
    assert "anyOf" in enforceable({**chosen, "properties": {"a": {"enum": values[:20]}}, "then": {"required": ["b"]}})
    enforceable({**chosen, "then": {"required": ["b"]}})
    many = {"oneOf": [{"enum": [f"{i}.{j}" for j in range(100)]} for i in range(100)]}
    assert enforceable(many) == {"anyOf": many["oneOf"]}
    assert counted[0] < 200_000, "a few for each value"
