"""Schemas that never end compiling, and those that do but are not surely cheap, have processes that can be ended."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import llguidance.numpy
import numpy as np
import pytest

from apps.llm.api import QueueFull, RequestError
from apps.llm.engine.grammar import pool, remote_matcher
from apps.llm.engine.grammar.matchers import Grammars, Matcher
from apps.llm.engine.grammar.remote_matcher import RemoteMatcher
from apps.llm.engine.grammar.schema_cost import Cheapness
from apps.llm.schemas.written import schema_grammar
from apps.llm.text import Engine, SamplingParams
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from tests.llm.engine.asking import ask, ids, read, settled, text
from tests.llm.engine.grammar import schema_fuzz, schemas

Load = Callable[..., Engine]
DEMO = Path(__file__).parents[4] / "apps" / "llm" / "demo" / "model"
VOCABULARY, EOS = 2048, (2, 3)
LETTERS = "abcdefghijklmnopqrst"
BOMBS: dict[str, dict[str, Any]] = {
    "a long multipleOf": {"type": "integer", "multipleOf": 3000017},
    "twenty patterns at once": {"allOf": [{"type": "string", "pattern": f".*{letter}.*"} for letter in LETTERS]},
}
PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
MERGED = {"allOf": [PLAIN, {"type": "object", "properties": {"a": {"maximum": 99}}}]}
"""Ordinary, but not surely cheap."""


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(ModelTokenizer.of_folder(str(DEMO)).fast, VOCABULARY, EOS)
    made.warm_up()
    yield made
    made.close()


@pytest.fixture
def nothing_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cheapness, "of", lambda self, schema: False)


def beats() -> Callable[[], int]:
    """Starts to count the times that a thread of this process comes to run; the count so far, and the end of it."""
    counted, over = [0], threading.Event()

    def count() -> None:
        while not over.wait(0.01):
            counted[0] += 1

    threading.Thread(target=count, daemon=True).start()
    return lambda: (over.set(), counted[0])[1]


def below(pid: int) -> set[int]:
    """The processes that a process has started, and those have."""
    children = set[int]()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        children |= {int(child) for child in task.read_text().split()}
    return children.union(*map(below, children))


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def mask_of(matcher: Any) -> np.ndarray:
    until(lambda: not getattr(matcher, "pending", False))
    return np.array(matcher.allowed_along(())[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_schema_without_end_is_refused(grammars: Grammars, name: str) -> None:
    """Oracle: this process, whose threads go on meanwhile."""
    counted = beats()
    with pytest.raises(RequestError, match=r"^response_format: the JSON schema is too complex") as error:
        grammars.matchers(schema_grammar(BOMBS[name])).result(120)
    assert error.value.field == "response_format"
    assert counted() > 50
    assert isinstance(grammars.matchers(schema_grammar(PLAIN)).result(60)[0], Matcher)


@pytest.mark.slow
def test_the_schema_at_fault_is_named(grammars: Grammars) -> None:
    from apps.llm.api import Grammar
    from apps.llm.schemas.written import schema_text

    held = [("tools[0].function.parameters", PLAIN), ("tools[1].function.parameters", BOMBS["a long multipleOf"])]
    rules = "".join(f"r{i}: %json {schema_text(schema)}\n" for i, (_, schema) in enumerate(held))
    grammar = Grammar(f"%llguidance {{}}\nstart: r0 | r1\n{rules}", tuple(held))
    with pytest.raises(RequestError) as error:
        grammars.matchers(grammar).result(120)
    assert error.value.field == "tools[1].function.parameters"


@pytest.mark.parametrize("seed", range(12))
def test_masks_are_the_librarys_own(grammars: Grammars, nothing_is_cheap: None, seed: int) -> None:
    """Oracle: llguidance in this process, without any limit of ours."""
    schema = schemas.drawn(seed)
    remote = grammars.matchers(schema_grammar(schema)).result(60)[0]
    assert isinstance(remote, RemoteMatcher)
    from apps.llm.schemas.written import schema_text

    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema_text(schema))
    own = llguidance.LLMatcher(grammars._ll_tokenizer, grammar)
    bits, dice = llguidance.numpy.allocate_token_bitmask(1, VOCABULARY), np.random.default_rng(seed)
    for _ in range(60):
        llguidance.numpy.fill_next_token_bitmask(own, bits, 0)
        mask = mask_of(remote)
        assert (mask == bits[0].view(np.uint32)).all()
        token = int(dice.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))))
        own.consume_token(token)
        remote.consume(token)
        until(lambda: not remote.pending)
        assert remote.ended == own.is_stopped() and not remote.failure
        if own.is_stopped():
            break


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_the_same_in_either_process(load: Load, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Oracles: the same request where its schema is compiled in this process, and jsonschema."""
    schema, asked = schemas.drawn(seed), {"seed": seed, "temperature": 1.0, "max_tokens": 110, "n": 3}
    params = SamplingParams(json_schema=schema, **asked)
    monkeypatch.setattr(Cheapness, "of", lambda self, schema: True)
    here = read(load().submit("a pet:", params))
    monkeypatch.setattr(Cheapness, "of", lambda self, schema: False)
    load().tokens._grammars._kept.clear()
    there = read(load().submit("a pet:", params))
    assert list(map(ids, there)) == list(map(ids, here)) and list(map(text, there)) == list(map(text, here))
    assert [answer[-1].finish_reason for answer in there] == [answer[-1].finish_reason for answer in here]
    whole = [answer for answer in there if answer[-1].finish_reason == "stop"]
    for answer in whole:
        jsonschema.validate(json.loads(text(answer)), schema)
    assert whole
    settled(load())


def test_an_answer_without_end_tokens_is_complete(load: Load, nothing_is_cheap: None) -> None:
    """Its grammar alone ends it, after the last token."""
    answer = ask(load(), "x", json_schema={"enum": ["cat"]}, ignore_eos=True)
    assert text(answer) == '"cat"' and answer[-1].finish_reason == "stop"


def test_a_mask_that_never_comes_ends_its_answer_alone(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the other answers, as they are alone."""
    engine = load()
    monkeypatch.setattr(remote_matcher, "MASK_S", 1.0)
    alone = ids(ask(engine, "the", max_tokens=60, ignore_eos=True, seed=5))
    long = {"allOf": [{"type": "array", "minItems": 400}, {"type": "array"}]}
    stuck = engine.submit("x", SamplingParams(json_schema=long, max_tokens=110))
    first = next(iter(stuck))
    processes = {
        child for parent in below(os.getpid()) for child in below(parent) if "grammar/child.py" in command(parent)
    }
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    assert ids(ask(engine, "the", max_tokens=60, ignore_eos=True, seed=5)) == alone
    outputs = [first, *stuck]
    assert outputs[-1].finish_reason == "error" and outputs[-1].at_fault == "response_format"
    with pytest.raises(RequestError, match="response_format"):
        outputs[-1].raise_failure()
    assert isinstance(ask(engine, "x", json_schema=MERGED, max_tokens=60)[-1].finish_reason, str)
    settled(engine)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_client_that_leaves_ends_the_compiling(grammars: Grammars) -> None:
    """Oracle: the kernel's list of processes."""
    grammars.matchers(schema_grammar(MERGED), caller="before").result(60)
    before = below(os.getpid())
    compiling = grammars.matchers(schema_grammar(BOMBS["a long multipleOf"]), caller="leaves")
    until(lambda: bool(below(os.getpid()) - before))
    its = below(os.getpid()) - before
    compiling.cancel()
    until(lambda: not below(os.getpid()) & its, seconds=pool.COMPILE_S - 1)  # before it would be ended anyway


@pytest.mark.slow
def test_one_callers_bombs_keep_no_other_caller_waiting(grammars: Grammars) -> None:
    schemas = [{"type": "integer", "multipleOf": 3000017 + 2 * i} for i in range(3)]
    bombs = [grammars.matchers(schema_grammar(schema), caller="one") for schema in schemas]
    for i in range(3):
        schema = MERGED | {"title": str(i)}
        assert isinstance(grammars.matchers(schema_grammar(schema), caller="other").result(60)[0], RemoteMatcher)
        plain = schema_grammar(PLAIN | {"title": str(i)})
        assert isinstance(grammars.matchers(plain, caller="one").result(60)[0], Matcher)
    assert not all(bomb.done() for bomb in bombs)  # of one caller, one is compiled at a time
    wait(bombs, timeout=120)
    assert all(isinstance(bomb.exception(0), RequestError | QueueFull) for bomb in bombs)


def test_more_grammars_than_places(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller has half the places. What nobody uses makes room; else the caller is told to try again."""
    monkeypatch.setattr(pool, "WAITING_S", 0.5)
    own = [MERGED | {"title": str(i)} for i in range(pool.PLACES // 2 + 1)]
    for schema in own:  # one after the other, all find a place
        grammars.matchers(schema_grammar(schema), caller="many").result(60)
    in_use = [grammars.matchers(schema_grammar(schema), caller="many").result(60) for schema in own[:-1]]
    with pytest.raises(QueueFull, match="your other requests"):
        grammars.matchers(schema_grammar(own[-1]), caller="many").result(60)
    assert grammars.matchers(schema_grammar(own[0]), caller="many").result(60)
    assert grammars.matchers(schema_grammar(own[-1]), caller="somebody else").result(60)
    in_use.pop()
    assert grammars.matchers(schema_grammar(own[-1]), caller="many").result(60)


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """Also where that is killed while a schema compiles. Oracle: the kernel's list of processes."""
    program = f"""
import sys, time
from apps.llm.schemas.written import schema_grammar
from apps.llm.engine.grammar.matchers import Grammars
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
grammars = Grammars(ModelTokenizer.of_folder({str(DEMO)!r}).fast, {VOCABULARY}, {EOS})
held = grammars.matchers(schema_grammar({MERGED!r})).result(60)
compiling = grammars.matchers(schema_grammar({BOMBS["a long multipleOf"]!r}))
time.sleep(600)
"""
    started = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: len(below(started.pid)) == 3)
    children = below(started.pid)
    started.kill()
    started.wait()
    until(lambda: not any("grammar/child.py" in command(child) for child in children))


def test_a_process_that_dies_is_replaced() -> None:
    before = below(os.getpid())  # an engine's, of the tests above
    grammars = Grammars(ModelTokenizer.of_folder(str(DEMO)).fast, VOCABULARY, EOS)
    try:
        matcher = grammars.matchers(schema_grammar(MERGED)).result(60)[0]
        assert isinstance(matcher, RemoteMatcher)
        first = next(child for child in below(os.getpid()) - before if below(child))
        os.kill(first, signal.SIGKILL)
        until(lambda: bool(matcher.failure))
        assert isinstance(grammars.matchers(schema_grammar(MERGED)).result(60)[0], RemoteMatcher)
    finally:
        grammars.close()


def answered(future: "Future[Any]") -> str:
    """How a request ends; any other way is an error of ours."""
    try:
        future.result(120)
    except (RequestError, QueueFull) as error:
        assert len(str(error)) < 1000 and "\n" not in str(error)
        return type(error).__name__
    return "compiled"


@pytest.mark.slow
@pytest.mark.parametrize("some", range(4))
def test_any_schema_ends(grammars: Grammars, some: int) -> None:
    fuzz(grammars, range(some * 30, some * 30 + 30))


@pytest.mark.long
def test_many_more_schemas_end(grammars: Grammars) -> None:
    fuzz(grammars, range(1000, 2000))


def fuzz(grammars: Grammars, seeds: range) -> None:
    """Compiles schemas, and follows those that can be for some tokens. Oracle: a heartbeat in this process."""
    counted, ends = beats(), list[str]()
    for seed in seeds:
        schema = schema_fuzz.drawn(seed, most=(5, 15, 40, 150)[seed % 4])
        try:
            future = grammars.matchers(schema_grammar(schema), caller=seed % 3)
        except RequestError as error:
            assert "response_format" in str(error)
            continue
        ends.append(answered(future))
        if ends[-1] == "compiled":
            walk(future.result()[0], seed)
    assert counted() > 10 and {"compiled", "RequestError"} <= set(ends)


def walk(matcher: Any, seed: int) -> None:
    dice = np.random.default_rng(seed)
    for _ in range(15):
        mask = mask_of(matcher)
        token = int(dice.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))))
        if not matcher.consume(token) or (until(lambda: not getattr(matcher, "pending", False)), matcher.ended)[1]:
            return


@pytest.mark.slow
def test_what_is_surely_cheap_is(grammars: Grammars) -> None:
    """Schemas that would be compiled in this process never exceed a process's bounds. Oracle: such a process."""
    judged = [schema_fuzz.drawn(seed, most=(5, 40)[seed % 2]) for seed in range(5000, 5200)]
    cheap = [schema for schema in judged if Cheapness().of(schema)]
    assert len(cheap) > 20
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cheapness, "of", lambda self, schema: False)
        for schema in cheap:
            try:
                walk(grammars.matchers(schema_grammar(schema)).result(60)[0], 0)
            except RequestError as error:
                assert "too complex" not in str(error)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"name": {"type": "string", "maxLength": 80}, "age": {"type": "integer"}}},
        {"$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "$ref": "#/$defs/node"},
        {"properties": {"at": {"type": "string", "format": "date-time"}, "n": {"type": ["integer", "null"]}}},
        {"anyOf": [{"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"}, {"enum": ["x", 1, None]}], "title": "T"},
        {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
        {},
    ],
)
def test_ordinary_schemas_stay_in_this_process(grammars: Grammars, schema: dict[str, Any]) -> None:
    assert isinstance(grammars.matchers(schema_grammar(schema)).result(60)[0], Matcher)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("[1]", "must be an object"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ({"type": "integer", "multipleOf": 10**30}, "cannot be followed"),
        ({"type": "integer", "minimum": 10**5000}, "cannot be written"),
        ({"description": "x" * 600_000}, "over 500,000 characters"),
        ({"enum": list(range(600_000))}, "over 500,000 characters"),
        (json.loads('{"items":' * 150 + "{}" + "}" * 150), "nested more than 100 deep"),
        ({"type": "odd\n2026-01-01 ERROR forged"}, "cannot be followed"),
    ],
)
def test_schemas_that_are_refused(grammars: Grammars, schema: Any, says: str) -> None:
    gc.collect()  # what is finalized below thousands of brackets has no stack left
    with pytest.raises(RequestError, match=says) as error:
        grammars.matchers(schema_grammar(schema)).result(60)
    assert error.value.field == "response_format" and "\n" not in str(error.value) and len(str(error.value)) < 1000
