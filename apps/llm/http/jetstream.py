"""The JetStream dialect: what the HTTP server beside JetStream on GKE answered, field for field.

    curl --request POST --header "Content-type: application/json" -s localhost:8000/generate \\
        --data '{"prompt": "What are the top 5 programming languages", "max_tokens": 200}'
"""

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, Response

from apps.llm.api import EngineError, EngineStopped, SamplingParams
from apps.llm.engine_model import EngineModel, EngineStream, Models
from apps.serving.ingress.bodies import EventStream
from apps.serving.ingress.openai_errors import of_stream, retry_after


class JetStreamBody(BaseModel):
    """JetStream's. Every field is optional. `server`, `port`, `session_cache` and `priority` are accepted and ignored:
    the engine is in this server, and to it all of these requests are alike."""

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


def jetstream_router(models: Models) -> APIRouter:
    """The dialect's own routes; /generate it shares with Saxml: see `generate`."""
    router = APIRouter()
    model = _only(models)

    @router.get("/")
    async def root() -> Response:
        """A greeting."""
        return Indented({"message": "HTTP Server for JetStream"})

    @router.get("/healthcheck")
    async def healthcheck() -> Response:
        """Whether the engine lives."""
        try:
            model.check()
        except EngineStopped as error:
            return Indented({"detail": str(error)}, 500)
        return Indented({"response": {"is_live": True}})

    return router


async def generate(models: Models, content: bytes) -> Response:
    """POST /generate, a body of JetStream's. Greedy: its sampling was the server's affair, and greedy by default."""
    model = _only(models)
    try:
        body = JetStreamBody.model_validate_json(content or b"{}")
        # JetStream ends an answer at the end of the context; it does not refuse to begin.
        params = SamplingParams(max_tokens=body.max_tokens, within_context=True, temperature=0.0)
        stream = await model.submit(body.prompt, params)
        try:
            if body.stream:
                name = f"generate-{uuid.uuid4().hex}"
                return await EventStream(
                    _pieces(stream, name), lambda error: _piece(name, error=_failure(error)), "application/json"
                ).begun()
            return Indented({"response": "".join([text async for text in _texts(stream)])})
        except BaseException:
            stream.abort()
            raise
    except ValidationError as error:
        detail = [e | {"loc": ["body", *e["loc"]]} for e in error.errors(include_url=False, include_context=False)]
        return Indented({"detail": json.loads(json.dumps(detail, default=str))}, 422)
    except EngineError as error:
        return Indented({"detail": str(error)}, error.status, retry_after(error.retry_after_s))


def _only(models: Models) -> EngineModel:
    """JetStream serves one model, so the first one answers."""
    return next(iter(models.values()))


async def _texts(stream: EngineStream) -> AsyncIterator[str]:
    async for outputs in stream.batches():
        yield "".join(output.text for output in outputs)


async def _pieces(stream: EngineStream, name: str) -> AsyncGenerator[bytes, None]:
    """JSON objects one after the other, one for what each step brings."""
    try:
        async for text in _texts(stream):
            yield _piece(name, text=text)
    finally:
        stream.abort()


def _piece(name: str, **told: str) -> bytes:
    return json.dumps({"id": name, "time_created": time.time(), **told}).encode()


def _failure(error: Exception) -> str:
    return str(error) if isinstance(error, EngineError) else of_stream(error).message
