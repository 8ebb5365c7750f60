"""The HTTP application: all dialects, the list of models, and error handling."""

from fastapi import FastAPI

from apps.serving.ingress.api_keys import OPEN, Principals
from apps.serving.ingress.application import answer_errors, models_router
from apps.serving.pages import Try, add_pages
from apps.stable_diffusion.http.imagine import imagine_router
from apps.stable_diffusion.http.loras import loras_router
from apps.stable_diffusion.http.openai import openai_router
from apps.stable_diffusion.http.sdapi.controlnet import controlnet_router
from apps.stable_diffusion.http.sdapi.routes import sdapi_router
from apps.stable_diffusion.pictures import PictureModel


def http_app(model: PictureModel, keys: Principals = OPEN) -> FastAPI:
    """The ASGI application of this model. With `keys`, requests need one of them."""
    about = "Stable Diffusion on Cloud TPU slices."
    app = FastAPI(title="Podslice", description=about, docs_url=None, redoc_url=None)
    app.include_router(models_router(model))
    app.include_router(imagine_router(model), tags=["Pictures"])
    app.include_router(openai_router(model), tags=["OpenAI"])
    app.include_router(sdapi_router(model), tags=["AUTOMATIC1111"])
    app.include_router(controlnet_router(model), tags=["AUTOMATIC1111"])
    app.include_router(loras_router(model), tags=["vLLM"])
    lines = [Try("A picture:", "curl{key} -o picture.png '{url}/imagine?prompt=a+red+circle'")]
    add_pages(app, lambda _: f"Stable Diffusion: {model.name}", lines, ("/docs", "/v1/models", "/health"), bool(keys))
    answer_errors(app, keys)
    return app
