"""The Saxml dialect: what the HTTP proxy before Saxml's model servers answered, and their score.

    curl --request POST --header "Content-type: application/json" -s localhost:8000/generate \\
        --data '{"model": "podslice-demo", "query": "How many days are in a week?"}'

The proxy's two generations answered `generate` differently, and so does this: with `extra_inputs`, which only the
second knew, the bare list; without, the first one's object. Errors have both generations' keys.
"""

import json
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.responses import Response

from apps.llm.api import EngineError, Output, SamplingParams
from apps.llm.engine_model import EngineModel
from apps.llm.http.answering import Writer, answered
from apps.serving.ingress.application import check_name
from apps.serving.ingress.bodies import BodyTooLarge, read_body
from apps.serving.ingress.openai_errors import OpenAIError, from_body, from_engine, of_stream
from apps.serving.ingress.openapi import json_body
from apps.serving.ingress.saxml_answers import SaxmlJSON, failed, failure

DONE = b"data: [DONE]\n\n"


class ExtraInputs(BaseModel):
    """Saxml's names and defaults. Numbers may come as floats: saxutil knows no others."""

    temperature: float = 0.5
    per_example_max_decode_steps: int = Field(128, ge=1)
    per_example_top_k: int = 200
    per_example_top_p: float = 0.95

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        unknown = sorted(map(str, value.keys() - cls.model_fields.keys())) if isinstance(value, dict) else []
        if unknown:
            raise ValueError(f"there is no {', '.join(unknown)}; allowed are {', '.join(cls.model_fields)}")
        return value


class SaxmlBody(BaseModel):
    """Saxml's."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    query: str
    extra_inputs: ExtraInputs | None = None
    stream: bool = False  # not the proxy's: what Saxml's own clients have as GenerateStream


class ScoreBody(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    prefix: str
    suffix: str | list[str]


class SaxmlWriter(Writer):
    """Streamed: server-sent events, one for each step: [[what is new of the text, the score so far]].

    Args:
        bare: whole, the bare list.
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
        """Returns the new text."""
        text = "".join(output.text for output in outputs)
        self._text += text
        self._score += sum(entry.logprob for output in outputs for entry in output.logprobs)
        return text

    def whole(self) -> Any:
        answer = [[self._text, self._score]]
        return answer if self._bare else {"generate_response": answer}


def is_saxml(body: bytes) -> bool:
    """Whether a body of POST /generate is Saxml's: no other dialect has a `query` or `extra_inputs`."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and ("query" in fields or "extra_inputs" in fields)


def saxml_router(model: EngineModel) -> APIRouter:
    """The dialect's own routes; /generate it shares with JetStream: see `generate`."""
    router = APIRouter()

    @router.post("/score", openapi_extra=json_body(ScoreBody))
    async def score(request: Request) -> Response:
        """Saxml's lm.score: how likely each suffix is after the prefix, as the sum of its tokens' log probabilities.

        The prefix is tokenized as a prompt is, each suffix by itself and without special tokens: no token spans the
        two.
        """
        try:
            body = ScoreBody.model_validate_json(await read_body(request))
            check_name(model, body.model)
            suffixes = [body.suffix] if isinstance(body.suffix, str) else body.suffix
            logprobs = await model.score(body.prefix, suffixes)
        except (EngineError, OpenAIError, ValidationError, BodyTooLarge) as error:
            return refusal(error)
        return SaxmlJSON(
            {"model": model.name, "scores": [sum(of_one) for of_one in logprobs], "token_log_probs": logprobs}
        )

    return router


async def generate(model: EngineModel, content: bytes) -> Response:
    """POST /generate with a body of Saxml's. A text's score is the sum of its tokens' log probabilities."""
    try:
        body = SaxmlBody.model_validate_json(content)
        check_name(model, body.model)
        extra = body.extra_inputs or ExtraInputs()
        params = SamplingParams(
            # Saxml ends an answer where the model's room ends; it does not refuse to begin.
            max_tokens=extra.per_example_max_decode_steps,
            within_context=True,
            temperature=extra.temperature,
            top_k=extra.per_example_top_k,
            top_p=extra.per_example_top_p,
            logprobs=0,
        )
        writer = SaxmlWriter(bare=body.extra_inputs is not None)
        return await answered(await model.submit(params, body.query), writer, body.stream)
    except (EngineError, OpenAIError, ValidationError) as error:
        return refusal(error)


def refusal(error: Exception) -> Response:
    """Any error that a dialect may meet, in both of Saxml's forms at once; the status is the one of OpenAI's form."""
    if not isinstance(error, OpenAIError):
        error = from_body(error) if isinstance(error, ValidationError | BodyTooLarge) else from_engine(error)
    return failed(error.message, error.status, error.retry_after_s)
