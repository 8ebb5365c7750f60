"""The AUTOMATIC1111 dialect: /sdapi/v1/txt2img, img2img, and the calls that programs make before and meanwhile.

Progress and interruption concern the jobs of the caller's key in this dialect on this replica. Without keys those are
everyone's, and with several replicas they may miss some.
"""

import base64
import json
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response

from apps.serving.errors import EngineError
from apps.serving.ingress.api_keys import SCOPE_PRINCIPAL
from apps.serving.ingress.bodies import BodyTooLarge
from apps.serving.ingress.json_body import BadJSON, parsed_object, read_json
from apps.serving.ingress.openai_errors import OpenAIError, from_body, from_engine, parsed
from apps.serving.ingress.openapi import json_body, json_object
from apps.stable_diffusion.engine.job import Aborted, ImageJob
from apps.stable_diffusion.engine.request import Size
from apps.stable_diffusion.http.sdapi_requests import NAMES, Image2ImageBody, Text2ImageBody
from apps.stable_diffusion.http.uploads import (
    Fit,
    from_base64,
    mask_from_brightness,
    pixels_of,
    read_image,
    read_mask,
)
from apps.stable_diffusion.pictures import FinishedImage, ImageRequest, PictureModel
from apps.stable_diffusion.png import SAMPLER_NAMES
from ray_configs.cluster.release import PODSLICE_VERSION

Jobs = dict[ImageJob, float]
"""Open jobs and their start times, oldest first."""


class _Route(APIRoute):
    """Errors in AUTOMATIC1111's format: {"error", "detail", "errors"}."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except OpenAIError as error:
                headers = {name: value for name, value in error.response().headers.items() if name == "retry-after"}
                kind = error.body()["error"]["type"]
                body = {"error": kind, "detail": error.message, "body": "", "errors": error.message}
                return JSONResponse(body, error.status, headers)

        return handled


def sdapi_router(model: PictureModel) -> APIRouter:
    """The dialect's routes over this model."""
    router = APIRouter(prefix="/sdapi/v1", route_class=_Route)
    open_jobs: dict[str | None, Jobs] = defaultdict(dict)  # of this dialect, by the principal of their key

    def jobs_of(request: Request) -> Jobs:
        return open_jobs[request.scope.get(SCOPE_PRINCIPAL)]

    @router.post("/txt2img", openapi_extra=json_body(Text2ImageBody))
    async def txt2img(request: Request) -> Response:
        """Pictures of a prompt, as base64."""
        body = await parsed(Text2ImageBody, request)
        return await _answer(model, jobs_of(request), body, {})

    @router.post("/img2img", openapi_extra=json_body(Image2ImageBody))
    async def img2img(request: Request) -> Response:
        """Pictures made from `init_images[0]`; with `mask`, only its white parts are repainted."""
        body = await parsed(Image2ImageBody, request)
        try:
            size = _size(model, body)
            arrays = await model.decoded(lambda: _arrays(body, size))
        except EngineError as error:
            raise from_engine(error, NAMES) from error
        return await _answer(model, jobs_of(request), body, arrays)

    @router.get("/progress")
    async def progress(request: Request) -> Any:
        """Progress of the key's oldest job."""
        return _progress(jobs_of(request))

    @router.post("/interrupt")
    async def interrupt(request: Request) -> Any:
        """Stops the key's jobs between two steps; their requests are answered with the pictures finished so far."""
        for job in list(jobs_of(request)):
            job.abort()
        return {}

    @router.get("/samplers")
    async def samplers() -> Any:
        """Names for `sampler_name`."""
        return [{"name": name, "aliases": [scheduler], "options": {}} for scheduler, name in SAMPLER_NAMES.items()]

    @router.get("/schedulers")
    async def schedulers() -> Any:
        """Names for `scheduler`: there is one."""
        return [{"name": "automatic", "label": "Automatic", "aliases": None, "default_rho": -1.0}]

    @router.get("/sd-models")
    async def sd_models() -> Any:
        """The one model that is served."""
        where = {"hash": None, "sha256": None, "filename": model.name, "config": None}
        return [{"title": model.name, "model_name": model.name} | where]

    @router.get("/options")
    async def options() -> Any:
        """The web UI's settings that exist here."""
        return {"sd_model_checkpoint": model.name, "samples_format": "png"}

    @router.post("/options", openapi_extra=json_object({"sd_model_checkpoint": {"type": "string"}}, closed=False))
    async def set_options(request: Request) -> Any:
        """Changes nothing: accepts the name of the served model, and refuses others."""
        try:
            wanted = parsed_object(await read_json(request) or b"{}")
        except (BadJSON, BodyTooLarge) as error:
            raise from_body(error) from None
        _check_settings(model, wanted)
        return {}

    return router


def _check_settings(model: PictureModel, settings: dict[str, Any]) -> None:
    name = settings.get("sd_model_checkpoint")
    if name and str(name).partition(" [")[0] != model.name:  # the web UI appends a hash
        raise OpenAIError(404, f"The model '{name}' does not exist. Served here: {model.name}.", code="model_not_found")


def _size(model: PictureModel, body: Text2ImageBody) -> Size:
    width, height = model.default_size
    return model.size(body.width or width, body.height or height)


def _arrays(body: Image2ImageBody, size: Size) -> dict[str, Any]:
    fit: Fit = "crop" if body.resize_mode == 1 else "stretch"
    image = read_image(from_base64(body.init_images[0], "image"), "image")
    arrays: dict[str, Any] = {"image": pixels_of(image, size, fit), "strength": body.denoising_strength}
    if body.mask:
        mask = read_mask(from_base64(body.mask, "mask"), image)
        arrays["mask"] = mask_from_brightness(mask, size, fit, bool(body.inpainting_mask_invert))
    return arrays


async def _answer(model: PictureModel, jobs: Jobs, body: Text2ImageBody, arrays: dict[str, Any]) -> Response:
    _check_settings(model, body.override_settings or {})
    try:
        wanted = ImageRequest(
            prompt=body.prompt,
            size=_size(model, body),
            n=body.pictures,
            negative_prompt=body.negative_prompt or "",
            seed=None if body.seed in (None, -1) else body.seed,
            num_inference_steps=body.steps,
            guidance_scale=body.cfg_scale,
            scheduler=body.sampler(),
            **arrays,
        )
        job = model.submit(wanted)
    except EngineError as error:
        raise from_engine(error, NAMES) from error
    jobs[job] = time.monotonic()
    pictures: list[FinishedImage] = []
    try:
        async for news in model.news(job):
            if isinstance(news, FinishedImage):
                pictures.append(news)
    except Aborted:
        pass  # interrupted: answer with the pictures so far
    except EngineError as error:
        raise from_engine(error, NAMES) from error
    except BaseException:  # above all: cancelled, because the client has left
        job.abort()
        raise
    finally:
        del jobs[job]
    pictures.sort(key=lambda drawn: drawn.picture)
    images = [] if body.send_images is False else [base64.b64encode(drawn.png).decode() for drawn in pictures]
    sent = body.model_dump(exclude_none=True, exclude={"init_images", "mask"})
    return JSONResponse({"images": images, "parameters": sent, "info": json.dumps(_info(model, job, pictures))})


def _info(model: PictureModel, job: ImageJob, pictures: list[FinishedImage]) -> dict[str, Any]:
    """AUTOMATIC1111's description of a job; the `all_` lists cover the finished pictures."""
    first = job.requests[0]
    return {
        "prompt": first.prompt,
        "all_prompts": [drawn.request.prompt for drawn in pictures],
        "negative_prompt": first.negative_prompt,
        "all_negative_prompts": [drawn.request.negative_prompt for drawn in pictures],
        "seed": first.seed,
        "all_seeds": [drawn.request.seed for drawn in pictures],
        "width": first.width,
        "height": first.height,
        "sampler_name": SAMPLER_NAMES[first.scheduler],
        "cfg_scale": first.guidance_scale,
        "steps": first.num_inference_steps,
        "batch_size": len(job.requests),
        "denoising_strength": None if first.image is None else first.strength,
        "sd_model_name": model.name,
        "infotexts": [drawn.parameters for drawn in pictures],
        "warnings": sorted({warning for drawn in pictures for warning in drawn.warnings}),
        "interrupted": len(pictures) < len(job.requests),
        "job_timestamp": _timestamp(),
        "version": f"podslice {PODSLICE_VERSION}",
    }


def _progress(jobs: Jobs) -> dict[str, Any]:
    idle = {"job": "", "job_count": 0, "job_no": 0, "sampling_step": 0, "sampling_steps": 0}
    reply = {"progress": 0.0, "eta_relative": 0.0, "current_image": None, "textinfo": None}
    state = {"skipped": False, "interrupted": False, "stopping_generation": False, "job_timestamp": _timestamp()}
    if not jobs:
        return reply | {"state": state | idle}
    job, began = next(iter(jobs.items()))
    done, total = sum(job.steps_done), sum(job.steps_total)
    share, seconds = done / total, time.monotonic() - began
    step = min(job.steps_done)
    of = {"job": "podslice", "job_count": len(jobs), "job_no": 0, "sampling_step": step}
    state |= of | {"interrupted": job.leaving, "sampling_steps": max(job.steps_total)}
    eta = seconds * (1 - share) / share if share else 0.0
    return reply | {"progress": share, "eta_relative": eta, "state": state}


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%d%H%M%S")
