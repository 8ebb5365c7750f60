"""The HTTP application: the dialects, side by side, and what belongs to none of them."""

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute

from apps.llm.batches.http import batches_router
from apps.llm.batches.records import Kept
from apps.llm.engine_model import EngineModel
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


def http_app(
    model: EngineModel, keys: Principals = OPEN, stored_responses: int = 0, kept: Kept | None = None
) -> FastAPI:
    """An ASGI application that answers for this model; with keys, only to those who hold a key.

    Args:
        stored_responses: how many answers of /v1/responses are kept, in this process.
        kept: where files and batches are; None: there are none. The application works on batches while it runs, between
            ASGI's lifespan events.
    """
    runner = None
    if kept is not None:
        from apps.llm.batches.runner import Runner  # what works on batches is loaded where there may be any

        runner = Runner(kept)
    lifespan = None if runner is None else lambda _: runner.running(http_app(model), model)
    app = FastAPI(title="Podslice", description="Language models on Cloud TPU slices.", lifespan=lifespan)
    dialects = [
        ("OpenAI", openai_router(model)),
        ("OpenAI", responses_router(model, ResponseStore(stored_responses))),
        ("Anthropic", anthropic_router(model)),
        ("vLLM", vllm_router(model)),
        ("JetStream", jetstream.jetstream_router(model)),
        ("Saxml", saxml.saxml_router(model)),
    ]
    posts = [route.path for _, router in dialects for route in router.routes if _is_post(route)]
    endpoints = [path for path in posts if path.startswith("/v1/") and "{" not in path]
    app.include_router(models_router(model))
    for dialect, router in dialects:
        app.include_router(router, tags=[dialect])
    made = runner.wake if runner else lambda: None
    app.include_router(batches_router(kept, model.name, endpoints, made), tags=["OpenAI"])

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
        return await (saxml if saxml.is_saxml(body) else jetstream).generate(model, body)

    app.add_middleware(NamedCaller)
    answer_errors(app, keys, anthropic_errors.by_path)
    return app


def _is_post(route: BaseRoute) -> bool:
    return isinstance(route, APIRoute) and "POST" in route.methods
