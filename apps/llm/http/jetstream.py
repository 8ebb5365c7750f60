"""The JetStream dialect: the API of the HTTP server beside JetStream on GKE, field for field.

    curl --request POST --header "Content-type: application/json" -s localhost:8000/generate \\
        --data '{"prompt": "What are the top 5 programming languages", "max_tokens": 200}'
"""

import json
import time
import uuid
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, Response

from apps.llm.api import EngineError, EngineStopped
from apps.llm.http.answering import Writer, answered
from apps.llm.served.text_model import TextModel
from apps.llm.text_api import Output, SamplingParams
from apps.serving.errors import shortened
from apps.serving.ingress.dialects.openai_errors import of_stream, retry_after
from apps.serving.ingress.json_body import BadJSON, validated


class JetStreamBody(BaseModel):
    """JetStream's request. Every field is optional. `server`, `port`, `session_cache` and `priority` are accepted and
    ignored."""

    model_config = ConfigDict(extra="ignore")

    server: str = "127.0.0.1"
    port: str = "9000"
    session_cache: str = ""
    prompt: str = "This is an example prompt"
    priority: int = 0
    max_tokens: int = Field(100, ge=1)
    stream: bool = False


class Indented(JSONResponse):
    def render(self, content: Any) -> bytes:
        return json.dumps(content, indent=4).encode()


class JetStreamWriter(Writer):
    """One answer. A stream is a sequence of JSON objects, one per step."""

    streamed_as, whole_as = "application/json", Indented

    def __init__(self) -> None:
        self._name, self._text = f"generate-{uuid.uuid4().hex}", ""

    def events(self, outputs: list[Output]) -> bytes:
        return self._piece(text="".join(output.text for output in outputs))

    def failed(self, error: Exception) -> bytes:
        return self._piece(error=str(error) if isinstance(error, EngineError) else of_stream(error).message)

    def _piece(self, **fields: str) -> bytes:
        return json.dumps({"id": self._name, "time_created": time.time(), **fields}).encode()

    def take(self, outputs: list[Output]) -> None:
        self._text += "".join(output.text for output in outputs)

    def whole(self) -> Any:
        return {"response": self._text}


def jetstream_router(model: TextModel) -> APIRouter:
    """The dialect's own routes. /generate is shared with Saxml; see `generate`."""
    router = APIRouter()

    @router.get("/")
    async def root() -> Response:
        """A greeting."""
        return Indented({"message": "HTTP Server for JetStream"})

    @router.get("/healthcheck")
    async def healthcheck() -> Response:
        """Whether the engine is running."""
        try:
            model.check()
        except EngineStopped as error:
            return Indented({"detail": str(error)}, 500)
        return Indented({"response": {"is_live": True}})

    return router


async def generate(model: TextModel, content: bytes) -> Response:
    """POST /generate with JetStream's body. Greedy: JetStream sets sampling on the server, with greedy the default."""
    try:
        body = validated(JetStreamBody, content or b"{}")
        # JetStream truncates an answer at the end of the context instead of refusing a large max_tokens.
        params = SamplingParams(max_tokens=body.max_tokens, within_context=True, temperature=0.0)
        return await answered(await model.submit(params, body.prompt), JetStreamWriter(), body.stream, model.texts)
    except BadJSON as error:
        return Indented({"detail": [{"type": "json_invalid", "loc": ["body"], "msg": str(error)}]}, 422)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        detail = [e | {"loc": ["body", *e["loc"]], "input": shortened(str(e["input"]))} for e in found]
        return Indented({"detail": detail}, 422)
    except EngineError as error:
        return Indented({"detail": str(error)}, error.status, retry_after(error.retry_after_s))
