"""The OpenAI dialect: /v1/images/generations, /v1/images/edits and /v1/images/variations."""

import base64
import time
from collections.abc import AsyncGenerator
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from apps.serving.errors import EngineError
from apps.serving.ingress.application import check_name
from apps.serving.ingress.dialects.openai_errors import OpenAIError, from_engine, of_stream, parsed, refusing
from apps.serving.ingress.event_stream import EventStream
from apps.serving.ingress.openapi import STREAMED, form, json_body
from apps.stable_diffusion.engine.controlnets.use import ControlUse
from apps.stable_diffusion.engine.job import PictureJob, Step
from apps.stable_diffusion.engine.request import Size, check_prompt
from apps.stable_diffusion.http.controls import controls_of
from apps.stable_diffusion.http.imagine import event
from apps.stable_diffusion.http.loras import uses_of
from apps.stable_diffusion.http.openai_requests import EditBody, GenerationBody, VariationBody, read_edit
from apps.stable_diffusion.http.uploads import has_transparency, mask_from_alpha, pixels_of, read_image, read_mask
from apps.stable_diffusion.pictures import FinishedPng, PictureModel, PicturesRequest, PreviewPng

Kind = Literal["image_generation", "image_edit"]
NAMES = {"previews": "partial_images"}
"""Engine's field -> OpenAI's, where they differ."""


def openai_router(model: PictureModel) -> APIRouter:
    """The dialect's routes over this model."""
    router = APIRouter()

    @router.post("/v1/images/generations", openapi_extra=json_body(GenerationBody), responses=STREAMED)
    async def generations(request: Request) -> Response:
        """OpenAI's image generation, with `seed`, `num_inference_steps`, `guidance_scale`, `scheduler` and more."""
        body = await parsed(GenerationBody, request)
        check_name(model, body.model)
        with refusing(NAMES):
            check_prompt(body.prompt)
            size = model.size_named(body.size)
            wanted = _wanted(size, body, controls=await _controls(model, body, size))
        return await _answer(model, wanted, body, "image_generation")

    @router.post("/v1/images/edits", openapi_extra=form(EditBody, ("image", "mask"), ("image",)), responses=STREAMED)
    async def edits(request: Request) -> Response:
        """OpenAI's image edit: repaints the mask's transparent parts or, without a mask, the whole image."""
        body, image, mask = await read_edit(request, EditBody)
        check_name(model, body.model)
        with refusing(NAMES):
            check_prompt(body.prompt)
            size = model.size_named(body.size)
            arrays = await model.decoded(lambda: _arrays(image, mask, size))
            arrays["controls"] = await _controls(model, body, size)
            wanted = _wanted(size, body, strength=body.strength, **arrays)
        return await _answer(model, wanted, body, "image_edit")

    @router.post("/v1/images/variations", openapi_extra=form(VariationBody, ("image",), ("image",)), responses=STREAMED)
    async def variations(request: Request) -> Response:
        """OpenAI's image variation: image to image, which needs no prompt; `strength` says how far it goes."""
        body, image, mask = await read_edit(request, VariationBody)
        check_name(model, body.model)
        if mask is not None:
            raise OpenAIError(400, "mask: is not of a variation; send it to /v1/images/edits", "mask", "invalid_value")
        with refusing(NAMES):
            size = model.size_named(body.size)
            start = await model.decoded(lambda: pixels_of(read_image(image, "image"), size, "crop"))
            controls = await _controls(model, body, size)
            wanted = _wanted(size, body, strength=body.strength, image=start, controls=controls)
        return await _answer(model, wanted, body, "image_edit")

    return router


def _wanted(size: Size, body: GenerationBody | EditBody, **more: Any) -> PicturesRequest:
    return PicturesRequest(
        prompt=body.prompt,
        size=size,
        n=1 if body.n is None else body.n,
        negative_prompt=body.negative_prompt or "",
        emphasis=bool(body.emphasis),
        clip_skip=body.clip_skip,
        seed=body.seed,
        num_inference_steps=body.num_inference_steps,
        guidance_scale=body.guidance_scale,
        scheduler=body.scheduler,
        previews=body.partial_images or 0,
        loras=uses_of(body.loras),
        **more,
    )


async def _controls(model: PictureModel, body: GenerationBody, size: Size) -> tuple[ControlUse, ...]:
    bodies = body.controlnets
    return await model.decoded(lambda: controls_of(bodies, size)) if bodies else ()


def _arrays(image: bytes, mask: bytes | None, size: Size) -> dict[str, Any]:
    """The engine's image and mask; a partly transparent image is its own mask."""
    opened = read_image(image, "image")
    if mask is not None:
        drawn = mask_from_alpha(read_mask(mask, opened), size, "crop")
        return {"image": pixels_of(opened, size, "crop"), "mask": drawn}
    if has_transparency(opened):  # what is under the mask is what the client left there
        hidden = pixels_of(opened.convert("RGB"), size, "crop")
        return {"image": hidden, "mask": mask_from_alpha(opened, size, "crop")}
    return {"image": pixels_of(opened, size, "crop")}


async def _answer(model: PictureModel, wanted: PicturesRequest, body: GenerationBody, kind: Kind) -> Response:
    """Submit the pictures; answer as JSON or as a stream."""
    try:
        job = model.submit(wanted)
    except EngineError as error:
        raise from_engine(error, NAMES) from error
    try:
        if body.stream:
            events = _events(model, job, wanted.size, kind, bool(body.progress))
            return await EventStream(events, lambda error: of_stream(error, NAMES).event()).begun()
        pictures = await model.draw(job)
    except EngineError as error:
        raise from_engine(error, NAMES) from error
    except BaseException:  # above all: cancelled, because the client has left
        job.abort()
        raise
    facts = {"created": int(time.time()), "background": "opaque", "output_format": "png", "size": _text(wanted.size)}
    as_url = body.response_format == "url"
    return JSONResponse(facts | {"data": [_image(drawn, as_url) for drawn in pictures]})


def _image(drawn: FinishedPng, as_url: bool = False) -> dict[str, Any]:
    data = base64.b64encode(drawn.png).decode()
    image: dict[str, Any] = {"url": f"data:image/png;base64,{data}"} if as_url else {"b64_json": data}
    image["seed"] = drawn.request.seed
    return image | ({"warnings": drawn.notes} if drawn.notes else {})


def _text(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


async def _events(
    model: PictureModel, job: PictureJob, size: Size, kind: Kind, progress: bool
) -> AsyncGenerator[bytes]:
    """OpenAI's events, plus `.step` ones if `progress`. Closing the iterator aborts the job."""
    try:
        async for news in model.news(job):
            facts = {"created_at": int(time.time()), "background": "opaque", "output_format": "png"}
            facts |= {"size": _text(size), "quality": "auto"}
            match news:
                case PreviewPng():
                    name = f"{kind}.partial_image"
                    facts |= {"partial_image_index": news.number, "image_index": news.picture}
                    facts["b64_json"] = base64.b64encode(news.png).decode()
                case FinishedPng():
                    name = f"{kind}.completed"
                    facts |= {"image_index": news.picture} | _image(news)
                case Step(picture, step, steps) if progress:
                    name, facts = f"{kind}.step", {"image_index": picture, "step": step, "steps": steps}
                case _:
                    continue
            yield event(name, {"type": name} | facts)
    finally:
        job.abort()
