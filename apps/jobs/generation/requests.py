"""Turns lines of the input into requests, and their results into lines of the output. `apps.jobs.generate`'s docstring
has the formats; fields mean what they do in OpenAI's API, and are parsed by the server's own types.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from apps.llm.api import AnswerFailed, RequestError
from apps.llm.batch_api.lines import answered, check_model, check_not_streamed, dump, json_object, request_body
from apps.llm.http.openai.chat_answers import ChatWriter
from apps.llm.http.openai.completion_answers import CompletionWriter, PromptCounts, choices
from apps.llm.http.openai.requests import UNIONS, ChatBody, CompletionBody, each
from apps.llm.text.generation import Generation
from apps.llm.text_api import PieceReader, SamplingParams
from apps.serving.ingress.dialects.openai_errors import OpenAIError, from_body, from_engine
from apps.serving.ingress.json_body import BadJSON, validated

if TYPE_CHECKING:
    from apps.llm.text import Engine

URLS: dict[str, type[CompletionBody] | type[ChatBody]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
}
ID_FIELDS = ("id", "custom_id")


@dataclass(frozen=True)
class Line:
    """A valid line.

    Args:
        index: its place in the input, from 0.
        ids: its `id` or `custom_id`, to be repeated in the answer.
        wrapped: it is in the format of OpenAI's batch API, and is answered in it.
    """

    index: int
    ids: Mapping[str, Any]
    wrapped: bool
    body: CompletionBody | ChatBody


class BadLine(ValueError):
    """A line that cannot be answered; the message names the line, counted from 1, and the field."""

    def __init__(self, index: int, ids: Mapping[str, Any], wrapped: bool, error: OpenAIError):
        super().__init__(f"line {index + 1}: {error.message}")
        self.index, self.ids, self.wrapped, self.error = index, ids, wrapped, error

    def answer(self) -> str:
        body = self.error.body()
        body["error"]["message"] = str(self)
        if self.wrapped:
            return dump(_wrapped(self.index, self.ids, self.error.status, body))
        return dump({"index": self.index, **self.ids, **body})


@dataclass(frozen=True)
class Defaults:
    """Values of fields that a line leaves out."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    """Seed of the first line; each further line adds 1, so that equal prompts do not get equal answers."""

    def fields(self, index: int) -> dict[str, Any]:
        values = {"max_tokens": self.max_tokens, "temperature": self.temperature, "top_p": self.top_p}
        if self.seed is not None:
            values["seed"] = self.seed + index
        return {name: value for name, value in values.items() if value is not None}


NO_DEFAULTS = Defaults()


def read(index: int, text: bytes, defaults: Defaults = NO_DEFAULTS) -> Line:
    """Parse a line's request. Raises BadLine."""
    ids: dict[str, Any] = {}
    wrapped = False
    try:
        fields = json_object(text, '{"prompt": "..."}')
        ids = {name: fields[name] for name in ID_FIELDS if name in fields}
        wrapped = "body" in fields or "url" in fields
        if wrapped:
            kind, fields = URLS.get(str(fields.get("url"))), request_body(fields, URLS)
        elif ("prompt" in fields) == ("messages" in fields):
            message = "exactly one of prompt and messages is needed"
            raise OpenAIError(400, message, "prompt", "missing_required_parameter")
        else:
            kind = CompletionBody if "prompt" in fields else ChatBody
        assert kind is not None  # `request_body` refuses other URLs
        given = {name for name, value in fields.items() if value is not None}
        if "max_completion_tokens" in given:
            given.add("max_tokens")
        added = {name: value for name, value in defaults.fields(index).items() if name not in given}
        body = validated(kind, json.dumps(fields | added).encode())
        check_not_streamed(body.stream)
    except (ValidationError, BadJSON) as error:
        raise BadLine(index, ids, wrapped, from_body(error, UNIONS)) from None
    except OpenAIError as error:
        raise BadLine(index, ids, wrapped, error) from None
    return Line(index, ids, wrapped, body)


@dataclass
class Open:
    """A line whose request has been submitted to the engine."""

    line: Line
    params: SamplingParams
    model: str
    echoes: list[str] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    reader: Callable[[], PieceReader | None] = lambda: None
    """Makes a reader of one answer; None if it is text alone."""

    def wait(self) -> None:
        """Wait until the answer is complete, or the engine has failed. Tokens are not read as they come: threads woken
        at each token would take the engine's time."""
        for generation in reversed(self.generations):  # the last likely ends last: then one wake-up serves for all
            generation.wait()


@dataclass(frozen=True)
class AnswerLine:
    """A line of the output, without its end of line."""

    text: str
    error: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0


def submit(line: Line, engine: "Engine", model: str) -> Open:
    """Submit the line to the engine, without waiting.

    Raises:
        BadLine: the engine refuses it.
        EngineStopped: the engine accepts no more requests.
    """
    body = line.body
    try:
        check_model(body.model, (model,))
    except OpenAIError as error:
        raise BadLine(line.index, line.ids, line.wrapped, error) from None
    opened = Open(line, body.params(engine.sampling_defaults), model)
    prompts: Sequence[str | list[int]]
    try:
        if isinstance(body, ChatBody):
            ids, turn = engine.chat(body.request())
            prompts, opened.params = [ids], turn.constrained(opened.params)
            opened.reader = opened.params.reader or turn.reader
        else:
            prompts = each(body.prompt)
            if body.echo:
                opened.echoes = [p if isinstance(p, str) else engine.tokenizer.decode(p) for p in prompts]
        for prompt in prompts:
            opened.generations.append(engine.submit(prompt, opened.params))
    except RequestError as error:
        for generation in opened.generations:
            generation.abort()
        raise BadLine(line.index, line.ids, line.wrapped, from_engine(error, body.names)) from None
    return opened


def collect(opened: Open) -> AnswerLine:
    """Wait for the answer, and format it.

    Raises:
        EngineStopped: the engine failed before it was complete.
    """
    opened.wait()
    line, n, generations = opened.line, opened.params.n, opened.generations
    answers = choices(len(generations), n, opened.echoes, opened.reader)
    counts = PromptCounts(
        sum(len(generation.prompt_ids) for generation in generations),
        sum(generation.cached_tokens for generation in generations),
    )
    with_logprobs = opened.params.logprobs is not None
    kind = ChatWriter if isinstance(line.body, ChatBody) else CompletionWriter
    prompts = [generation.prompt_ids for generation in generations] if line.body.return_token_ids else None
    writer = kind(opened.model, counts, answers, with_logprobs, prompts=prompts)
    for i, generation in enumerate(generations):
        outputs = generation.drain()
        for output in outputs:
            try:
                output.raise_failure()
            except AnswerFailed as error:  # this line's alone
                return AnswerLine(BadLine(line.index, line.ids, line.wrapped, from_engine(error)).answer(), error=True)
        writer.take([output.moved(i * n) for output in outputs])
    whole, usage = writer.whole(), writer.usage()
    if line.wrapped:
        whole["id"] = f"{writer.ID}{line.index}"
        return AnswerLine(dump(_wrapped(line.index, line.ids, 200, whole)), False, counts.prompt_tokens, writer.tokens)
    shape = {"index": line.index, **line.ids}
    # Left out: cached tokens, which depend on the run and not on the line.
    usage = {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    answer = whole["choices"][0].get("message", {})
    plain = not with_logprobs and prompts is None
    if len(answers) == 1 and plain and answer.keys().isdisjoint(("reasoning_content", "tool_calls")):
        text = answer["content"] if answer else "".join(answers[0].texts)
        shape |= {"text": text, "finish_reason": answers[0].finish_reason, "usage": usage}
    else:
        shape |= {"choices": whole["choices"], "usage": usage, **writer.ids()}
    return AnswerLine(dump(shape), False, counts.prompt_tokens, writer.tokens)


def _wrapped(index: int, ids: Mapping[str, Any], status: int, body: dict[str, Any]) -> dict[str, Any]:
    """A line of the file that OpenAI's batch API returns."""
    return {"index": index, **answered(index, ids.get("custom_id"), status, body)}
