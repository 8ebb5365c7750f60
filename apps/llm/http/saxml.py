"""The Saxml dialect: the API of the HTTP proxy in front of Saxml's model servers, and their `score`.

    curl --request POST --header "Content-type: application/json" -s localhost:8000/generate \\
        --data '{"model": "podslice-demo", "query": "How many days are in a week?"}'

The proxy's two versions answer `generate` differently. A request with `extra_inputs`, which only the second has, gets
the second's bare list; any other gets the first's object. Errors have the keys of both.
"""

import json
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.responses import Response

from apps.llm.api import EngineError
from apps.llm.http.adapters import named
from apps.llm.http.answering import Writer, answered
from apps.llm.served.text_model import TextModel
from apps.llm.text_api import Output, SamplingParams
from apps.serving.ingress.bodies import BodyTooLarge
from apps.serving.ingress.dialects.openai_errors import OpenAIError, from_body, from_engine, of_stream
from apps.serving.ingress.dialects.saxml_answers import SaxmlJSON, failed, failure
from apps.serving.ingress.json_body import BadJSON, read_json, validated
from apps.serving.ingress.openapi import json_body

DONE = b"data: [DONE]\n\n"


class ExtraInputs(BaseModel):
    """Saxml's names and defaults. Integers may come as floats, as saxutil sends them."""

    temperature: float = 0.5
    per_example_max_decode_steps: int = Field(128, ge=1)
    per_example_top_k: int = 200
    per_example_top_p: float = 0.95

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        unknown = (
            next((name for name in value if name not in cls.model_fields), None) if isinstance(value, dict) else None
        )
        if unknown is not None:
            raise ValueError(f"unknown: {unknown}; allowed are {', '.join(cls.model_fields)}")
        return value


class SaxmlBody(BaseModel):
    """Saxml's request."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    query: str
    extra_inputs: ExtraInputs | None = None
    stream: bool = False  # not in the proxy's API: Saxml's own clients call it GenerateStream


class ScoreBody(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    prefix: str
    suffix: str | list[str]


class SaxmlWriter(Writer):
    """One answer. A stream is server-sent events, one per step: [[new text, score so far]].

    Args:
        bare: whether an answer that is not streamed is the bare list.
    """

    whole_as = SaxmlJSON

    def __init__(self, bare: bool):
        self._bare = bare
        self._text, self._score = "", 0.0

    def events(self, outputs: list[Output]) -> bytes:
        return f"data: {json.dumps([[self.take(outputs), self._score]])}\n\n".encode()

    def last(self) -> bytes:
        return DONE

    def failed(self, error: Exception) -> bytes:
        return f"data: {json.dumps(failure(of_stream(error).message))}\n\n".encode() + DONE

    def take(self, outputs: list[Output]) -> str:
        """Collects a step's outputs; returns the new text."""
        text = "".join(output.text for output in outputs)
        self._text += text
        self._score += sum(entry.logprob for output in outputs for entry in output.logprobs)
        return text

    def whole(self) -> Any:
        answer = [[self._text, self._score]]
        return answer if self._bare else {"generate_response": answer}


def is_saxml(body: bytes) -> bool:
    """Whether a body of POST /generate is Saxml's: only Saxml has `query` and `extra_inputs`."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and ("query" in fields or "extra_inputs" in fields)


def saxml_router(model: TextModel) -> APIRouter:
    """The dialect's own routes. /generate is shared with JetStream; see `generate`."""
    router = APIRouter()

    @router.post("/score", openapi_extra=json_body(ScoreBody))
    async def score(request: Request) -> Response:
        """Saxml's lm.score: the log probability of each suffix after the prefix, summed over the suffix's tokens.

        The prefix is tokenized like a prompt; each suffix separately, without special tokens, so no token spans both.
        """
        try:
            body = validated(ScoreBody, await read_json(request))
            served = named(model, body.model)
            suffixes = [body.suffix] if isinstance(body.suffix, str) else body.suffix
            logprobs = await served.score(body.prefix, suffixes)
        except (EngineError, OpenAIError, ValidationError, BodyTooLarge, BadJSON) as error:
            return refusal(error)
        scores = {"model": served.name, "scores": [sum(of_one) for of_one in logprobs], "token_log_probs": logprobs}
        return await served.texts.written(sum(map(len, logprobs)), lambda: SaxmlJSON(scores))

    return router


async def generate(model: TextModel, content: bytes) -> Response:
    """POST /generate with Saxml's body. A text's score is the sum of its tokens' log probabilities."""
    try:
        body = validated(SaxmlBody, content)
        served = named(model, body.model)
        extra = body.extra_inputs or ExtraInputs()
        params = SamplingParams(
            # Saxml truncates an answer at the end of the context instead of refusing a large limit.
            max_tokens=extra.per_example_max_decode_steps,
            within_context=True,
            temperature=extra.temperature,
            top_k=extra.per_example_top_k,
            top_p=extra.per_example_top_p,
            logprobs=0,
        )
        writer = SaxmlWriter(bare=body.extra_inputs is not None)
        return await answered(await served.submit(params, body.query), writer, body.stream, served.texts)
    except (EngineError, OpenAIError, ValidationError, BadJSON) as error:
        return refusal(error)


def refusal(error: EngineError | OpenAIError | ValidationError | BodyTooLarge | BadJSON) -> Response:
    """The response for any error, with the keys of both of Saxml's formats and the status of OpenAI's."""
    if not isinstance(error, OpenAIError):
        error = from_body(error) if isinstance(error, ValidationError | BodyTooLarge | BadJSON) else from_engine(error)
    return failed(error.message, error.status, error.retry_after_s)
