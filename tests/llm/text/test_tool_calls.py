"""Tool calls that a request forces: whatever the weights, the arguments are valid. One engine, every way of writing."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import llguidance
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from apps.jobs.generation import requests as batch
from apps.llm.api import Grammar, RequestError
from apps.llm.chat.call_format import mark
from apps.llm.chat.conversation import ChatRequest, Conversation, PastCall
from apps.llm.chat.model_format import ModelFormat, Turn
from apps.llm.chat.tools import Tool, ToolUse
from apps.llm.engine.grammar.matchers import Matcher
from apps.llm.text import Engine, EngineConfig, SamplingParams
from apps.llm.text.generation import Generation
from tests.llm.chat.written import Understood, pieces_of, understood
from tests.llm.engine import tiny_models
from tests.llm.engine.asking import read
from tests.llm.engine.grammar import schemas
from tests.llm.text import chat_models

HELLO = [{"role": "user", "content": "hi"}]
OTHERS = ("unknown", "none", "thinking", "qwen3", "qwen3_coder", "harmony", "atem")
FORMATS = [name for name in chat_models.TEMPLATES if name not in OTHERS]
DAYS = {"days": {"type": "integer", "minimum": 0, "maximum": 99}}
CLOSED = {"type": "object", "additionalProperties": False}
ASK = Tool("ask", "tools[0].function", parameters=CLOSED | {"properties": DAYS, "required": ["days"]})


BEGUN = {"harmony": "<|channel|>commentary to=", "atem": " to=ask"}
"""How a call begins, in a format where text before it has marks too."""
SETTINGS = tiny_models.SMALL | {"pages": 160, "max_model_len": 512}


@pytest.fixture(scope="module", params=[True, False], ids=["marks are tokens", "marks are text"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, compile_cache: str
) -> Iterator[Engine]:
    folder = chat_models.save(tmp_path_factory.mktemp("chat"), "hermes", special=request.param)
    engine = Engine.load(EngineConfig(model=str(folder), compile_cache=compile_cache, **SETTINGS))
    yield engine
    engine.shutdown()


def turn_of(engine: Engine, template: str, request: ChatRequest) -> Turn:
    """A turn of a model with that template."""
    format_ = ModelFormat.of(chat_models.TEMPLATES[template])
    format_ = format_.with_tokens(engine.capabilities.special_tokens)
    format_.check(request)
    return format_.turn(request, "")


def submitted(engine: Engine, turn: Turn, **params: Any) -> Generation:
    settings = {"max_tokens": 450, "temperature": 1.5} | params
    return engine.submit("hello", turn.constrained(SamplingParams(**settings)))


def answered(turn: Turn, generation: Generation) -> tuple[Understood, str]:
    """What the reader makes of it, and how it ended."""
    outputs = [output for answer in read(generation) for output in answer]
    reader = turn.reader()
    events = [event for output in outputs for event in reader.feed(output.text)] + reader.finish()
    return understood(events), outputs[-1].finish_reason or ""


def every_call_is_valid(engine: Engine, seeds: Sequence[int], formats: Sequence[str]) -> None:
    checker = Draft202012Validator.FORMAT_CHECKER
    open_ = []
    for seed in seeds:
        schema = schemas.drawn(seed)
        Draft202012Validator.check_schema(schema)
        use = ToolUse([replace(ASK, name="plan", parameters=schema), ASK], "required", parallel=seed % 2 == 0)
        turn = turn_of(engine, formats[seed % len(formats)], ChatRequest(HELLO, use))
        open_.append((schema, turn, submitted(engine, turn, seed=seed)))
    ended = 0
    for schema, turn, generation in open_:
        found, reason = answered(turn, generation)
        if reason == "length":
            continue
        ended += 1
        assert reason == "stop" and found.calls and not found.text
        assert not turn.request.tools.one_call or len(found.calls) == 1
        for name, arguments in found.loaded():
            wanted = {"plan": schema, "ask": ASK.parameters}[name]
            Draft202012Validator(wanted, format_checker=checker).validate(arguments)
    assert ended > 0.5 * len(seeds)  # long marks written as text, and several calls, often exceed max_tokens


@pytest.mark.slow
def test_forced_arguments_are_valid(engine: Engine) -> None:
    every_call_is_valid(engine, range(36), FORMATS)


@pytest.mark.slow
@pytest.mark.parametrize("template", FORMATS)
def test_forced_arguments_are_valid_for_a_hundred_schemas(engine: Engine, template: str) -> None:
    every_call_is_valid(engine, range(1000, 1100), [template])


@pytest.mark.parametrize(
    "template",
    [
        "hermes",
        "mistral",
        "mistral named",
        "gemma",
        "deepseek",
        "deepseek fenced",
        "harmony",
        "atem",
        "qwen3_coder",
        "llama",
        "pythonic",
        "json",
    ],
)
@pytest.mark.parametrize("parallel", [False, True])
def test_a_strict_tool_is_held_from_where_its_call_begins(engine: Engine, template: str, parallel: bool) -> None:
    """After free text and a mark, or the first character of a call, a walk through what is allowed ends in a call."""
    turn = turn_of(engine, template, ChatRequest(HELLO, ToolUse([replace(ASK, strict=True)], parallel=parallel)))
    format_, grammar = turn.model.calls, turn.constrained(SamplingParams()).grammar
    assert format_ is not None and grammar is not None
    begun = BEGUN.get(template) or (f"fox {format_.mark}" if format_.mark else format_.first_chars[0])
    end = engine.capabilities.eos_token_ids[0]
    for seed in range(6):
        dice, matcher = random.Random(seed), engine.tokens._grammars.matchers(grammar).result()[0]
        ids = engine.tokenizer.encode_suffix(begun)
        for token in ids:
            assert matcher.consume(token)
        while len(ids) < 800:
            words = matcher.allowed()
            tokens = [t for t in range(tiny_models.VOCAB) if words[t // 32] >> t % 32 & 1]
            assert tokens and not matcher.failure
            ids.append(end if end in tokens else dice.choice(tokens))
            if not matcher.consume(ids[-1]):
                break
        found = understood(pieces_of(turn.reader(), [engine.tokenizer._hf.decode(ids).removesuffix("</s>")]))
        assert found.text == ("fox" if "fox" in begun else "")
        for _, arguments in found.loaded():
            Draft202012Validator(ASK.parameters).validate(arguments)
        assert len(found.calls) == 1 or (parallel and found.calls)


def test_text_is_free_beside_a_strict_tool(engine: Engine) -> None:
    for template in FORMATS:
        turn = turn_of(engine, template, ChatRequest(HELLO, ToolUse([replace(ASK, strict=True)])))
        found, _ = answered(turn, submitted(engine, turn, seed=1, max_tokens=8))
        assert found.text and not found.calls


def test_a_tool_that_is_not_strict_leaves_the_answer_free(engine: Engine) -> None:
    turn = turn_of(engine, "hermes", ChatRequest(HELLO, ToolUse([ASK])))
    held = turn.constrained(SamplingParams())
    assert held.grammar is None and held.shown_tokens == set(turn.model.tokens.values())


def test_with_a_response_format_an_answer_is_a_call_or_follows_it(engine: Engine) -> None:
    content = CLOSED | {"properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    texts, called = 0, 0
    for template in ("hermes", "llama", "json"):
        turn = turn_of(engine, template, ChatRequest(HELLO, ToolUse([replace(ASK, strict=True)], parallel=False)))
        for seed in range(6):
            found, reason = answered(turn, submitted(engine, turn, seed=seed, json_schema=content))
            assert reason == "stop"
            if found.calls:
                Draft202012Validator(ASK.parameters).validate(found.loaded()[0][1])
                called += 1
            else:
                Draft202012Validator(content).validate(json.loads(found.text))
                texts += 1
    assert texts and called


def test_reasoning_stays_free_before_a_forced_call(engine: Engine) -> None:
    format_ = ModelFormat.of(chat_models.TEMPLATES["thinking"])
    request = ChatRequest(HELLO, ToolUse([ASK], "required", only="ask"))
    turn = format_.turn(request, "[assistant]<think>\n")
    assert turn.opened
    closes = engine.tokenizer.encode_suffix(">")[0]
    generation = submitted(engine, turn, seed=3, logit_bias={closes: 4.0}, max_tokens=400, stop=["</tool_call>"])
    found, _ = answered(turn, generation)
    assert found.reasoning  # a random model seldom ends it


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"type": "string"}, "object"),
        ({"type": "object", "properties": {"a": {"type": "no"}}}, "cannot be followed"),
        ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "cannot be followed"),
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "cannot be followed"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "cannot be followed"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_by_its_field(
    engine: Engine, parameters: dict[str, Any], says: str
) -> None:
    bad = Tool("bad", "tools[1].function", parameters=parameters, strict=True)
    turn = turn_of(engine, "hermes", ChatRequest(HELLO, ToolUse([ASK, bad])))
    with pytest.raises(RequestError, match=says) as refused:
        submitted(engine, turn)
    assert refused.value.field == "tools[1].function.parameters"
    lax = turn_of(engine, "hermes", ChatRequest(HELLO, ToolUse([ASK, replace(bad, strict=False)])))
    submitted(engine, lax, max_tokens=1).wait()


def test_a_line_of_a_batch_may_have_tools(engine: Engine) -> None:
    offer = {"type": "function", "function": {"name": "ask", "parameters": ASK.parameters}}
    body = {"messages": HELLO, "tools": [offer], "tool_choice": "required", "parallel_tool_calls": False, "seed": 1}
    line = batch.read(0, json.dumps(body | {"max_tokens": 200}).encode())
    answer = json.loads(batch.collect(batch.submit(line, engine, "tiny")).text)
    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and call["function"]["name"] == "ask"
    Draft202012Validator(ASK.parameters).validate(json.loads(call["function"]["arguments"]))
    free = batch.read(1, json.dumps(body | {"tool_choice": "none", "max_tokens": 4}).encode())
    answer = json.loads(batch.collect(batch.submit(free, engine, "tiny")).text)
    assert answer["text"] and "choices" not in answer
    with pytest.raises(batch.BadLine, match="line 3: tool_choice"):
        batch.submit(batch.read(2, json.dumps(body | {"tools": []}).encode()), engine, "tiny")


def test_an_answer_whose_grammar_cannot_go_on_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past llguidance's limits, made low here, what there is does not pass for the whole. Oracle: llguidance."""
    grammar = llguidance.LLMatcher.grammar_from_json_schema({"type": "array", "items": ASK.parameters})
    low = llguidance.LLMatcher(
        engine.tokens._grammars._ll_tokenizer, grammar, limits=llguidance.LLParserLimits(step_max_items=3)
    )
    made: Future[list[Matcher]] = Future()
    made.set_result([Matcher(low.deep_copy(), tiny_models.VOCAB) for _ in range(2)])
    monkeypatch.setattr(engine.tokens._grammars, "matchers", lambda held, count, caller: made)
    outputs = read(engine.submit("x", SamplingParams(json_schema={}, max_tokens=50, n=2)))
    assert all(len(answer) < 50 for answer in outputs)
    for answer in outputs:
        assert (answer[-1].finish_reason, answer[-1].at_fault) == ("error", "response_format")
        assert "Too many items" in (answer[-1].error or "")


@pytest.mark.parametrize("size", [1, 3])
def test_an_answer_fails_before_a_token_that_nothing_has_allowed(
    engine: Engine, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it would have ended with that token, which once made it complete."""

    class Lost(Matcher):
        def allowed_along(self, draft: Sequence[int]) -> Any:
            return [np.zeros(-(-tiny_models.VOCAB // 32), np.uint32)] * (1 + len(draft))

    held = llguidance.LLMatcher(engine.tokens._grammars._ll_tokenizer, 'start: "x"')
    made: Future[list[Matcher]] = Future()
    made.set_result([Lost(held, tiny_models.VOCAB)])
    monkeypatch.setattr(engine.tokens._grammars, "matchers", lambda held, count, caller: made)
    outputs = read(engine.submit("x", SamplingParams(json_schema={}, max_tokens=size)))[0]
    assert [(o.finish_reason, o.at_fault, o.token_ids) for o in outputs] == [("error", "response_format", ())]


WITH_STOPS = (
    "<think>Wait. STOP? No.</think>I look."
    '<tool_call>\n{"name": "ask", "arguments": {"days": "STOP"}}\n</tool_call>Done. STOP now.'
)


def test_stop_strings_end_the_text_alone(engine: Engine) -> None:
    """Not the reasoning, which lm-eval's stops would end, nor a call's arguments, which would be cut JSON."""
    turn = turn_of(engine, "qwen3", ChatRequest(HELLO, ToolUse([ASK])))
    for stop, text, arguments in (("STOP", "I look.Done. ", '{"days": "STOP"}'), ("look", "I ", "")):
        params = turn.constrained(SamplingParams(stop=[stop], max_tokens=450))
        marked = re.split(
            "(" + "|".join(map(re.escape, turn.model.tokens)) + ")" if turn.model.tokens else "$^", WITH_STOPS
        )
        rule = " ".join(mark(part, turn.model.tokens) for part in marked if part)
        params = replace(params, grammar=Grammar(f"%llguidance {{}}\nstart: {rule}\n"))
        outputs = read(engine.submit("hello", params))[0]
        assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", stop)
        reader = (params.reader or turn.reader)()
        assert reader is not None
        found = understood([e for output in outputs for e in reader.feed(output.text)] + reader.finish())
        assert (found.text, found.reasoning) == (text, "Wait. STOP? No.")
        assert [call[1] for call in found.calls] == [arguments] * bool(arguments)


def test_special_tokens_of_calls_are_read_and_others_are_not(engine: Engine) -> None:
    turn = turn_of(engine, "hermes", ChatRequest(HELLO, ToolUse([ASK], "required")))
    outputs = read(submitted(engine, turn, seed=5))[0]
    text = "".join(output.text for output in outputs)
    assert text.startswith("<tool_call>\n{") and "</tool_call>" in text and "</s>" not in text


def test_the_prompt_shows_tools_calls_and_results(engine: Engine) -> None:
    conversation = Conversation()
    conversation.say("user", "Rain?")
    conversation.answer("", None, [PastCall("call_1", "ask", '{"days": 2}')])
    conversation.result("call_1", "no", "messages[2].tool_call_id")
    request = ChatRequest(conversation.messages, ToolUse([ASK]))
    ids, _ = engine.chat(request)
    prompt = engine.tokenizer._hf.decode(ids)
    assert prompt.startswith("Tools: ask[user] Rain?")
    assert '<tool_call>\n{"name": "ask", "arguments": {"days": 2}}\n</tool_call>' in prompt
    assert "[tool ask] no" in prompt and prompt.endswith("[assistant]")
    if mark := engine.tokenizer.fast.token_to_id("<tool_call>"):
        assert mark in ids
    without, _ = engine.chat(replace(request, tools=ToolUse([ASK], "none")))
    assert "Tools:" not in engine.tokenizer._hf.decode(without)
