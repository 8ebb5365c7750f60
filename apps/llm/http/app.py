"""The HTTP application: all dialects, and the routes and middleware that they share."""

import json
import shlex
from collections.abc import Mapping
from typing import Any, TypeGuard

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute

from apps.llm.batch_api.http import batches_router
from apps.llm.batch_api.records import BatchStore
from apps.llm.http import jetstream, saxml
from apps.llm.http.adapters import adapters_router
from apps.llm.http.anthropic.routes import anthropic_router
from apps.llm.http.caller import NamedCaller
from apps.llm.http.openai.routes import openai_router
from apps.llm.http.responses.routes import responses_router
from apps.llm.http.responses.store import ResponseStore
from apps.llm.http.vllm import vllm_router
from apps.llm.served.text_model import TextModel
from apps.llm.served.tracing import Traced
from apps.serving.ingress.api_keys import OPEN, Principals
from apps.serving.ingress.application import answer_errors, models_router
from apps.serving.ingress.bodies import BodyTooLarge
from apps.serving.ingress.dialects import anthropic_errors
from apps.serving.ingress.dialects.openai_errors import OpenAIError
from apps.serving.ingress.dialects.saxml_answers import failed
from apps.serving.ingress.json_body import read_json
from apps.serving.ingress.openapi import STREAMED, json_body
from apps.serving.pages import Try, add_pages


def http_app(
    model: TextModel,
    keys: Principals = OPEN,
    stored_responses: int = 0,
    batches: BatchStore | None = None,
    tokenizer_info: bool = False,
    adapter_loading: bool = False,
) -> FastAPI:
    """An ASGI application that serves this model; with `keys`, only to requests with a valid key.

    Args:
        stored_responses: maximum number of /v1/responses answers kept in this process.
        batches: storage of files and batches; None disables both. The application works on batches between ASGI's
            lifespan events.
        tokenizer_info: whether /tokenizer_info answers.
        adapter_loading: whether /v1/load_lora_adapter and /v1/unload_lora_adapter answer.
    """
    runner = None
    if batches is not None:
        from apps.llm.batch_api.runner import Runner  # imported only where batches are on

        runner = Runner(batches)
    lifespan = None if runner is None else lambda _: runner.running(http_app(model), model)
    about = "Language models on Cloud TPU slices."
    app = FastAPI(title="Podslice", description=about, lifespan=lifespan, docs_url=None, redoc_url=None)
    dialects = [
        ("OpenAI", openai_router(model)),
        ("OpenAI", responses_router(model, ResponseStore(stored_responses))),
        ("Anthropic", anthropic_router(model)),
        ("vLLM", vllm_router(model, tokenizer_info)),
        ("JetStream", jetstream.jetstream_router(model)),
        ("Saxml", saxml.saxml_router(model)),
    ]
    posts = [route.path for _, router in dialects for route in router.routes if _is_post(route)]
    endpoints = [path for path in posts if path.startswith("/v1/") and "{" not in path]
    app.include_router(models_router(model))
    for dialect, router in dialects:
        app.include_router(router, tags=[dialect])
    app.include_router(adapters_router(model, adapter_loading), tags=["vLLM"])
    wake = runner.wake if runner else lambda: None
    app.include_router(batches_router(batches, model.name, endpoints, wake), tags=["OpenAI"])

    @app.post(
        "/generate",
        tags=["JetStream", "Saxml"],
        openapi_extra=json_body(jetstream.JetStreamBody, saxml.SaxmlBody),
        responses=STREAMED,
    )
    async def generate(request: Request) -> Response:
        """Generates text. A body with `query` or `extra_inputs` is in Saxml's format, any other in JetStream's."""
        try:
            body = await read_json(request)
        except BodyTooLarge as error:  # Saxml's error has JetStream's keys too
            return saxml.refusal(error)
        return await (saxml if saxml.is_saxml(body) else jetstream).generate(model, body)

    add_pages(
        app, lambda _: f"A language model: {model.name}", _lines(model.name), LINKS, bool(keys), for_browsers=True
    )
    app.add_middleware(NamedCaller)
    if model.tracing is not None:
        app.add_middleware(Traced)
    answer_errors(app, keys, _written)
    return app


LINKS = ("/docs", "/v1/models", "/health", "/metrics")


def _lines(name: str) -> list[Try]:
    """Commands that try the model."""
    ask = json.dumps({"prompt": "How many days are in a week?", "max_tokens": 50})
    chat = json.dumps({"model": name, "messages": [{"role": "user", "content": "How many days are in a week?"}]})
    typed = " -H 'Content-Type: application/json'"
    return [
        Try("A text that the model continues:", f"curl{{key}} {{url}}/generate -d {shlex.quote(ask)}"),
        Try("A chat, as OpenAI has it:", f"curl{{key}}{typed} {{url}}/v1/chat/completions -d {shlex.quote(chat)}"),
        Try("OpenAI's client, in Python:", 'OpenAI(base_url="{url}/v1", api_key="YOUR_KEY")'),
    ]


def _written(scope: Mapping[str, Any], error: OpenAIError) -> Response:
    """The error as clients of the path expect it. (JetStream's and Saxml's refusals are their dialects' own.)"""
    if error.status >= 500 and scope["path"].endswith(("/generate", "/score")) and "/v1/" not in scope["path"]:
        return failed(error.message, error.status, error.retry_after_s)
    return anthropic_errors.by_path(scope, error)


def _is_post(route: BaseRoute) -> TypeGuard[APIRoute]:
    return isinstance(route, APIRoute) and "POST" in (route.methods or ())
