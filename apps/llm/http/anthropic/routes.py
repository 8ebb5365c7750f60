"""The Anthropic dialect: /v1/messages and /v1/messages/count_tokens."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from apps.llm.http.adapters import named
from apps.llm.http.answering import answered
from apps.llm.http.anthropic.answers import MessageWriter
from apps.llm.http.anthropic.requests import NAMES, UNIONS, MessagesBody, PromptBody
from apps.llm.served.text_model import TextModel
from apps.serving.ingress.dialects.anthropic_errors import PATHS, new_request_id
from apps.serving.ingress.dialects.openai_errors import parsed, refusing
from apps.serving.ingress.openapi import STREAMED, json_body


def anthropic_router(model: TextModel) -> APIRouter:
    """The dialect's routes over this model."""
    router = APIRouter()

    @router.post(PATHS, openapi_extra=json_body(MessagesBody), responses=STREAMED)
    async def messages(request: Request) -> Response:
        """Anthropic's messages. The model's own chat template makes the prompt."""
        body = await parsed(MessagesBody, request, UNIONS)
        served = named(model, body.model)
        with refusing(NAMES):
            prompt, turn = await served.texts.chat(body.request())
            params = turn.constrained(body.params(served.sampling_defaults))
            stream = await served.submit(params, prompt)
            reader = (params.reader or turn.reader)()
            writer = MessageWriter(served.name, stream, reader, served.max_model_len)
            response = await answered(stream, writer, bool(body.stream), served.texts)
        response.headers["request-id"] = new_request_id()
        return response

    @router.post(f"{PATHS}/count_tokens", openapi_extra=json_body(PromptBody))
    async def count_tokens(request: Request) -> Any:
        """The number of tokens in a message's prompt."""
        body = await parsed(PromptBody, request, UNIONS)
        served = named(model, body.model)
        with refusing(NAMES):
            prompt = await served.texts.counted(body.request())
        return {"input_tokens": len(prompt)}

    return router
