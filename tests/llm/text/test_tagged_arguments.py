"""Arguments between tags, as Muse Glimmer and Qwen3-Coder write them: enforced, whatever is written.

Tokens are drawn at random among those that the grammar allows.
"""

from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from apps.llm.api import RequestError
from apps.llm.chat.model_format import Turn
from apps.llm.chat.tools import Tool
from apps.llm.text import SamplingParams
from tests.llm.text.random_answers import ASK, Model

TEXTS = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "mode": {"enum": ["r", "rw"]},
        "code": {"type": "string", "minLength": 2, "maxLength": 5},
        "id": {"type": "string", "pattern": "^[a-f]{3}$"},
        "days": {"anyOf": [{"type": "integer", "minimum": 7, "maximum": 8}, {"type": "null"}]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "place": {"$ref": "#/$defs/place"},
    },
    "required": ["path", "mode", "code", "id", "days", "place"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Lyon"]}},
            "required": ["city"],
            "additionalProperties": False,
        }
    },
}
CLOSES = {"atem": "</atem:parameter>", "qwen3_coder": "\n</parameter>"}


@pytest.fixture(scope="module", params=CLOSES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(request.param, tmp_path_factory.mktemp("tagged"))


def called(model: Model, turn: Turn) -> list[tuple[str, dict[str, Any]]]:
    """The calls of a dozen random answers."""
    return [call for seed in range(12) for call in model.written(turn, seed, closes=CLOSES[model.template]).loaded()]


@pytest.mark.parametrize("strict", [True, False])
def test_parameters_follow_their_schemas(model: Model, strict: bool) -> None:
    """The oracle is jsonschema's validator, on what the reader makes of them."""
    tool = Tool("put", "tools[0].function", "Puts.", TEXTS, strict)
    found = [arguments for _, arguments in called(model, model.turn([tool], "required"))]
    for arguments in found:
        Draft202012Validator(TEXTS).validate(arguments)
    assert len(found) > 6 and 0 < sum("note" in arguments for arguments in found) < len(found)


@pytest.mark.slow
def test_any_arguments_where_nothing_is_enforced(model: Model) -> None:
    """A tool beside a strict one, and one that takes what it gets."""
    free = Tool("free", "tools[1].function", parameters={"type": "object"})
    for tool in (Tool("free", "tools[1].function"), free):
        turn = model.turn([replace(ASK, strict=True), tool])
        assert {name for name, _ in called(model, turn)} <= {"ask", "free"}
    assert any(arguments for _, arguments in called(model, model.turn([free], "required")))


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": ["string", "integer"]}, "what 'x' may be"),
        ({"type": "string", "format": "date"}, "what 'x' may be"),
        ({}, "what 'x' may be"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(model: Model, part: dict[str, object], why: str) -> None:
    schema = {"type": "object", "properties": {"x": part}, "required": ["x"], "additionalProperties": False}
    tool = Tool("f", "tools[0].function", parameters=schema, strict=True)
    with pytest.raises(RequestError, match=why) as refused:
        model.turn([tool]).constrained(SamplingParams())
    assert refused.value.field == "tools[0].function.parameters"
    model.turn([replace(tool, strict=False)], "required").constrained(SamplingParams())


@pytest.mark.parametrize("part", [{"type": "string", "pattern": 5}, {"type": "object", "properties": 5}])
@pytest.mark.parametrize("required", [["x"], 5])
def test_what_is_no_schema_is_a_bad_request(model: Model, part: dict[str, object], required: object) -> None:
    schema = {"type": "object", "properties": {"x": part}, "required": required, "additionalProperties": False}
    for strict in (True, False):
        turn = model.turn([Tool("f", "tools[0].function", parameters=schema, strict=strict)], "required")
        with pytest.raises(RequestError, match=r"tools\[0\].function.parameters"):
            grammar = turn.constrained(SamplingParams()).grammar
            assert grammar is not None
            model.grammars.matchers(grammar).result()


@pytest.mark.parametrize("target", [5, True, []])
def test_a_reference_to_no_schema_does_no_harm(model: Model, target: object) -> None:
    """Where nothing is enforced, the schema only tells texts from others."""
    schema = {"$ref": "#/$defs/x", "$defs": {"x": target}}
    reader = model.turn([Tool("f", "tools[0].function", parameters=schema)]).reader()
    assert reader is not None and reader.feed("Hi.")
