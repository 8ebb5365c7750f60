"""The Anthropic dialect: /v1/messages and /v1/messages/count_tokens."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from apps.llm.api import EngineError
from apps.llm.engine_model import EngineModel, EngineStream, Models
from apps.llm.http.anthropic_answers import MessageWriter
from apps.llm.http.anthropic_requests import NAMES, UNIONS, MessagesBody, PromptBody
from apps.serving.ingress.anthropic_errors import PATHS, event, new_request_id
from apps.serving.ingress.application import find_model
from apps.serving.ingress.bodies import EventStream
from apps.serving.ingress.openai_errors import from_engine, of_stream, parsed
from apps.serving.ingress.openapi import STREAMED, json_body

if TYPE_CHECKING:
    from apps.llm.chat.model_format import Turn


def anthropic_router(models: Models) -> APIRouter:
    """The dialect's routes over these models."""
    router = APIRouter()

    @router.post(PATHS, openapi_extra=json_body(MessagesBody), responses=STREAMED)
    async def messages(request: Request) -> Response:
        """Anthropic's messages: the model's own chat template makes the prompt."""
        body = await parsed(MessagesBody, request, UNIONS)
        model = find_model(models, body.model)
        try:
            prompt, turn = await model.chat(body.request())
            stream = await model.submit(prompt, turn.held(body.params()))
        except EngineError as error:
            raise from_engine(error, NAMES) from error
        response = await _answer(model, stream, turn, bool(body.stream))
        response.headers["request-id"] = new_request_id()
        return response

    @router.post(f"{PATHS}/count_tokens", openapi_extra=json_body(PromptBody))
    async def count_tokens(request: Request) -> Any:
        """How many tokens the prompt of a message has."""
        body = await parsed(PromptBody, request, UNIONS)
        model = find_model(models, body.model)
        try:
            prompt, _ = await model.chat(body.request())
        except EngineError as error:
            raise from_engine(error, NAMES) from error
        return {"input_tokens": len(prompt)}

    return router


async def _answer(model: EngineModel, stream: EngineStream, turn: "Turn", streamed: bool) -> Response:
    try:
        writer = MessageWriter(model.name, stream, None if turn.is_plain else turn.reader(), model.max_model_len)
        if streamed:
            return await EventStream(_events(stream, writer), lambda error: event(of_stream(error))).begun()
        async for outputs in stream.batches():
            writer.take(outputs)
        return JSONResponse(writer.whole())
    except EngineError as error:
        stream.abort()
        raise from_engine(error, NAMES) from error
    except BaseException:  # above all: cancelled, because the client has left
        stream.abort()
        raise


async def _events(stream: EngineStream, writer: MessageWriter) -> AsyncGenerator[bytes, None]:
    """Server-sent events: one piece of bytes for all that a step brings. Aborts what is unread when it is closed."""
    try:
        async for outputs in stream.batches():
            if news := writer.events(outputs):
                yield news
        yield writer.last_events()
    finally:
        stream.abort()
