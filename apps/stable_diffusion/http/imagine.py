"""GET /imagine?prompt=...: one picture as PNG, or its progress as server-sent events.

The events suit a browser's EventSource as well as a program:

    new EventSource("/imagine?prompt=a+red+circle&previews=2")

`queued` {ahead}, `step` {picture, step, steps}, `preview` {.., b64_json}, `picture` {seed, b64_json, ..}, then `end`
(on which an EventSource must be closed, or it reconnects) or `error` {error: {message, ..}}.
"""

import base64
import json
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field, ValidationError
from starlette.responses import Response

from apps.serving.errors import EngineError
from apps.serving.ingress.dialects.openai_errors import from_body, from_engine, of_stream
from apps.serving.ingress.event_stream import EventStream
from apps.serving.ingress.openapi import query, schema_of
from apps.stable_diffusion.engine.job import PictureJob, QueuePosition, Step
from apps.stable_diffusion.engine.request import check_prompt
from apps.stable_diffusion.http.loras import uses_in_query
from apps.stable_diffusion.pictures import FinishedPng, News, PictureModel, PicturesRequest, PreviewPng
from ray_configs.base import Strict


class ImagineQuery(Strict):
    """The URL's parameters; all but `prompt` have the model's defaults."""

    prompt: str = ""
    negative_prompt: str = ""
    emphasis: bool = Field(False, description="Read `(red:1.5)`, `[red]` and `BREAK` as AUTOMATIC1111 does.")
    clip_skip: int | None = Field(None, ge=1, description="2 reads CLIP's last layer but one.")
    size: str | None = None
    width: int | None = None
    height: int | None = None
    img_size: int | None = Field(None, description="Width and height.")
    seed: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = Field(None, allow_inf_nan=False)
    scheduler: str | None = None
    loras: str = Field("", description="LoRAs and their weights: `ink:0.8,face`.")
    stream: bool = False
    previews: int = Field(0, ge=0, le=10)


def imagine_router(model: PictureModel) -> APIRouter:
    """The dialect's routes over this model."""
    router = APIRouter()

    @router.get(
        "/imagine",
        response_class=Response,
        responses={200: {"content": {"image/png": {}, "text/event-stream": {}}}},
        openapi_extra=query(schema_of(ImagineQuery)["properties"]),
    )
    async def imagine(request: Request) -> Response:
        """A picture of `prompt` (image/png); with `stream=true`, or asked by an EventSource, its progress."""
        try:
            query = ImagineQuery.model_validate(dict(request.query_params))
        except ValidationError as error:
            raise from_body(error) from None
        stream = query.stream or "text/event-stream" in request.headers.get("accept", "")
        try:
            job = model.submit(_wanted(model, query, stream))
        except EngineError as error:
            raise from_engine(error) from error
        try:
            if stream:
                return await EventStream(_events(model, job)).begun()
            [drawn] = await model.draw(job)
        except EngineError as error:
            raise from_engine(error) from error
        except BaseException:  # above all: cancelled, because the client has left
            job.abort()
            raise
        headers = {"X-Seed": str(drawn.request.seed), "Server-Timing": f"picture;dur={1000 * drawn.seconds:.1f}"}
        if drawn.notes:
            headers["X-Warnings"] = json.dumps(drawn.notes)
        return Response(drawn.png, media_type="image/png", headers=headers)

    return router


def _wanted(model: PictureModel, query: ImagineQuery, stream: bool) -> PicturesRequest:
    check_prompt(query.prompt)
    if query.size is not None:
        size = model.size_named(query.size)
    else:
        width, height = model.default_size
        width, height = query.width or query.img_size or width, query.height or query.img_size or height
        size = model.size(width, height)
    return PicturesRequest(
        query.prompt,
        size,
        negative_prompt=query.negative_prompt,
        emphasis=query.emphasis,
        clip_skip=query.clip_skip,
        seed=query.seed,
        num_inference_steps=query.num_inference_steps,
        guidance_scale=query.guidance_scale,
        scheduler=query.scheduler,
        loras=uses_in_query(query.loras),
        previews=query.previews if stream else 0,
    )


async def _events(model: PictureModel, job: PictureJob) -> AsyncGenerator[bytes]:
    """The job as server-sent events. Closing the iterator aborts the job."""
    try:
        async for news in model.news(job):
            yield event(*_told(news))
        yield event("end", {})
    except Exception as error:
        yield event("error", of_stream(error).body())
    finally:
        job.abort()


def _told(news: News) -> tuple[str, dict[str, Any]]:
    """Name and data of an event."""
    match news:
        case PreviewPng(picture, number, step, steps, png):
            where = {"picture": picture, "number": number, "step": step, "steps": steps}
            return "preview", where | {"b64_json": base64.b64encode(png).decode()}
        case FinishedPng():
            facts = {"picture": news.picture, "seed": news.request.seed, "parameters": news.parameters}
            return "picture", facts | {"warnings": news.notes, "b64_json": base64.b64encode(news.png).decode()}
        case QueuePosition():
            return "queued", asdict(news)
        case Step():
            return "step", asdict(news)


def event(name: str, data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + json.dumps(data).encode() + b"\n\n"
