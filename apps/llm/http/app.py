"""The HTTP application: the faces, side by side, and what belongs to none of them."""

import logging
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from apps.llm.api import EngineStopped
from apps.llm.http import jetstream, saxml
from apps.llm.http.openai import openai_router
from apps.llm.model import Models
from apps.serving.ingress.api_keys import OPEN, Principals
from apps.serving.ingress.application import answer_as_openai
from apps.serving.ingress.request_body import BodyTooLarge, read_body

log = logging.getLogger("podslice")


def http_app(models: Models, keys: Principals = OPEN) -> FastAPI:
    """An ASGI application that answers for these models; with keys, only to those who hold a key."""
    app = FastAPI(title="Podslice", description="Language models on Cloud TPU slices.")
    app.include_router(openai_router(models), tags=["OpenAI"])
    app.include_router(jetstream.jetstream_router(models), tags=["JetStream"])
    app.include_router(saxml.saxml_router(models), tags=["Saxml"])

    @app.post("/generate", tags=["JetStream", "Saxml"])
    async def generate(request: Request) -> Response:
        """Both systems' servers have it: a body with `query` is Saxml's, one without is JetStream's."""
        try:
            body = await read_body(request)
        except BodyTooLarge as error:  # in the form that has both systems' keys
            return saxml.refusal(error)
        return await (saxml if saxml.is_saxml(body) else jetstream).generate(models, body)

    @app.get("/health", tags=["Server"])
    @app.get("/healthz", include_in_schema=False)
    async def health() -> Response:
        """Whether each model can answer, and how busy it is."""
        report: dict[str, Any] = {}
        well = True
        for name, model in models.items():
            report[name] = asdict(model.stats())
            try:
                model.check()
            except EngineStopped as error:
                well, report[name]["failure"] = False, str(error)
        return JSONResponse({"status": "ok" if well else "failed", "models": report}, 200 if well else 503)

    answer_as_openai(app, keys)
    return app
