"""The HTTP application: the faces, side by side, and what belongs to none of them."""

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from apps.serving.ingress.api_keys import OPEN, Principals
from apps.serving.ingress.application import answer_as_openai
from apps.stable_diffusion.engine.job import EngineStopped
from apps.stable_diffusion.http.imagine import imagine_router
from apps.stable_diffusion.http.openai import openai_router
from apps.stable_diffusion.http.sdapi import sdapi_router
from apps.stable_diffusion.pictures import PictureModel


def http_app(model: PictureModel, keys: Principals = OPEN) -> FastAPI:
    """An ASGI application that answers for this model; with keys, only to those who hold a key."""
    app = FastAPI(title="Podslice", description="Stable Diffusion on Cloud TPU slices.")
    app.include_router(imagine_router(model), tags=["Pictures"])
    app.include_router(openai_router(model), tags=["OpenAI"])
    app.include_router(sdapi_router(model), tags=["AUTOMATIC1111"])

    @app.get("/health", tags=["Server"])
    @app.get("/healthz", include_in_schema=False)
    async def health() -> Response:
        """Whether the model can answer, and how busy it is."""
        backend = model.engine.backend
        report: dict[str, Any] = asdict(model.stats()) | {"backend": backend.name, "device": backend.device}
        well = True
        try:
            model.check()
        except EngineStopped as error:
            well, report["failure"] = False, str(error)
        body = {"status": "ok" if well else "failed", "models": {model.name: report}}
        return JSONResponse(body, 200 if well else 503)

    answer_as_openai(app, keys)
    return app
