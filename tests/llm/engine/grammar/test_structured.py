"""Structured output: a random model's answers follow the schema all the same."""

import json
from collections.abc import Callable

import pytest

from apps.llm.text import Engine, SamplingParams
from tests.llm.engine.asking import ask, ids, read, settled, text

Load = Callable[..., Engine]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


def is_person(answer: str) -> None:
    person = json.loads(answer)
    assert set(person) == {"name", "age", "kind"}
    assert len(person["name"]) <= 8 and 0 <= person["age"] <= 150 and person["kind"] in ("cat", "dog")


@pytest.mark.parametrize("temperature", [0, 1.0, 2.0])
def test_schema(load: Load, temperature: float) -> None:
    answer = ask(load(), "a pet:", json_schema=PERSON, temperature=temperature, seed=1, max_tokens=110)
    assert answer[-1].finish_reason == "stop"
    is_person(text(answer))


@pytest.mark.slow
def test_schema_as_text_among_others_and_with_few_pages(load: Load) -> None:
    engine = load(pages=12)
    params = SamplingParams(json_schema=json.dumps(PERSON), temperature=1.0, seed=1, max_tokens=100, n=3)
    others = [engine.submit("the", SamplingParams(max_tokens=90, ignore_eos=True, seed=i)) for i in range(4)]
    people = [engine.submit("a pet:", params) for _ in range(2)]
    answers = [[ids(answer) for answer in read(generation)] for generation in people]
    assert answers[0] == answers[1]
    for answer in answers[0]:
        is_person(engine.tokenizer.decode(answer))
    for generation in others:
        read(generation)
    settled(engine)


def test_any_object(load: Load) -> None:
    bias = {load().tokenizer.encode("}")[1]: 20.0}  # a random model would go on for long
    answer = ask(load(), "json:", json_schema={}, logit_bias=bias, seed=2, max_tokens=100)
    assert answer[-1].finish_reason == "stop"
    assert isinstance(json.loads(text(answer)), dict)


def test_min_tokens_does_not_leave_nothing_to_choose(load: Load) -> None:
    answer = ask(load(), "x", json_schema={"enum": ["cat"]}, min_tokens=20, max_tokens=40, temperature=0)
    assert json.loads(text(answer)) == "cat"


def test_cut_short(load: Load) -> None:
    answer = ask(load(), "a pet:", json_schema=PERSON, max_tokens=4, temperature=0)
    assert answer[-1].finish_reason == "length"
