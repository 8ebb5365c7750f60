"""The HTTP application: the dialects, side by side, and what belongs to none of them."""

from fastapi import FastAPI, Request
from starlette.responses import Response

from apps.llm.engine_model import Models
from apps.llm.http import jetstream, saxml
from apps.llm.http.anthropic import anthropic_router
from apps.llm.http.caller import NamedCaller
from apps.llm.http.openai import openai_router
from apps.llm.http.responses.routes import responses_router
from apps.llm.http.responses.store import ResponseStore
from apps.llm.http.vllm import vllm_router
from apps.serving.ingress import anthropic_errors
from apps.serving.ingress.api_keys import OPEN, Principals
from apps.serving.ingress.application import answer_errors, models_router
from apps.serving.ingress.bodies import BodyTooLarge, read_body
from apps.serving.ingress.openapi import STREAMED, json_body


def http_app(models: Models, keys: Principals = OPEN, stored_responses: int = 0) -> FastAPI:
    """An ASGI application that answers for these models; with keys, only to those who hold a key.

    Args:
        stored_responses: how many answers of /v1/responses are kept, in this process.
    """
    app = FastAPI(title="Podslice", description="Language models on Cloud TPU slices.")
    app.include_router(models_router(models))
    app.include_router(openai_router(models), tags=["OpenAI"])
    app.include_router(responses_router(models, ResponseStore(stored_responses)), tags=["OpenAI"])
    app.include_router(anthropic_router(models), tags=["Anthropic"])
    app.include_router(vllm_router(models), tags=["vLLM"])
    app.include_router(jetstream.jetstream_router(models), tags=["JetStream"])
    app.include_router(saxml.saxml_router(models), tags=["Saxml"])

    @app.post(
        "/generate",
        tags=["JetStream", "Saxml"],
        openapi_extra=json_body(jetstream.JetStreamBody, saxml.SaxmlBody),
        responses=STREAMED,
    )
    async def generate(request: Request) -> Response:
        """An answer to a prompt: a body with `query` is Saxml's, one without is JetStream's."""
        try:
            body = await read_body(request)
        except BodyTooLarge as error:  # in the form that has both systems' keys
            return saxml.refusal(error)
        return await (saxml if saxml.is_saxml(body) else jetstream).generate(models, body)

    app.add_middleware(NamedCaller)
    answer_errors(app, keys, anthropic_errors.by_path)
    return app
