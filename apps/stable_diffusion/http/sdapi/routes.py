"""The AUTOMATIC1111 dialect: /sdapi/v1/txt2img, img2img, and the calls that programs make before and meanwhile.

Progress and interruption concern the jobs of the caller's key in this dialect on this replica. Without keys those are
everyone's, and with several replicas they may miss some.
"""

import base64
import json
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response

from apps.serving.errors import EngineError, RequestError
from apps.serving.ingress.api_keys import principal_of
from apps.serving.ingress.bodies import BodyRefused, BodyTooLarge
from apps.serving.ingress.dialects.openai_errors import (
    OpenAIError,
    from_body,
    from_engine,
    from_unread,
    parsed,
    refusing,
)
from apps.serving.ingress.json_body import BadJSON, parsed_object, read_json
from apps.serving.ingress.openapi import json_body, json_object
from apps.stable_diffusion.engine.job import Aborted
from apps.stable_diffusion.engine.request import Size
from apps.stable_diffusion.http.sdapi.controlnet import controls_of_units
from apps.stable_diffusion.http.sdapi.facts import Jobs, info_of, progress_of
from apps.stable_diffusion.http.sdapi.hires import second_pass_of
from apps.stable_diffusion.http.sdapi.inpainting import Start, from_image, from_mask
from apps.stable_diffusion.http.sdapi.lists import add_lists
from apps.stable_diffusion.http.sdapi.neutral import (
    CLIP_SKIP,
    SETTINGS,
    check_fields,
    check_sampler_fields,
    check_scripts,
    check_second_pass,
    check_settings,
)
from apps.stable_diffusion.http.sdapi.requests import NAMES, Image2ImageBody, Text2ImageBody
from apps.stable_diffusion.http.uploads import Fit, from_base64, read_image
from apps.stable_diffusion.pictures import FinishedPng, PictureModel, PicturesRequest, check_length
from apps.stable_diffusion.prompt_syntax import bare_parentheses, check_syntax, split_loras, unescaped
from apps.stable_diffusion.samplers import ALIASES, SAMPLER_NAMES, sampler_named


class _Route(APIRoute):
    """Errors in AUTOMATIC1111's format: {"error", "detail", "errors"}."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except (OpenAIError, BodyRefused) as refused:
                error = from_unread(refused) if isinstance(refused, BodyRefused) else refused
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
        return open_jobs[principal_of(request.scope)]

    @router.post("/txt2img", openapi_extra=json_body(Text2ImageBody))
    async def txt2img(request: Request) -> Response:
        """Pictures of a prompt, as base64."""
        body = await parsed(Text2ImageBody, request)
        _check(model, body)
        return await _answer(model, jobs_of(request), body, None)

    @router.post("/img2img", openapi_extra=json_body(Image2ImageBody))
    async def img2img(request: Request) -> Response:
        """Pictures made from `init_images[0]`; with `mask`, only its white parts are repainted."""
        body = await parsed(Image2ImageBody, request)
        _check(model, body)
        with refusing(NAMES):
            size = _size(model, body)
            start = await model.decoded(lambda: _start(body, size))
        return await _answer(model, jobs_of(request), body, start)

    @router.get("/progress")
    async def progress(request: Request) -> Any:
        """Progress of the key's oldest job."""
        return progress_of(jobs_of(request))

    @router.post("/interrupt")
    async def interrupt(request: Request) -> Any:
        """Stops the key's jobs between two steps; their requests are answered with the pictures finished so far."""
        for job in list(jobs_of(request)):
            job.abort()
        return {}

    @router.get("/samplers")
    async def samplers() -> Any:
        """Names for `sampler_name`, of those that can serve the model."""
        return [
            {"name": SAMPLER_NAMES[scheduler], "aliases": [scheduler, *ALIASES[scheduler]], "options": {}}
            for scheduler in model.engine.backend.schedulers
        ]

    @router.get("/schedulers")
    async def schedulers() -> Any:
        """Names for `scheduler`: the model's own noise levels, and Karras'."""
        more = {"aliases": None, "need_inner_model": False}
        return [
            {"name": "automatic", "label": "Automatic", "default_rho": -1.0, **more},
            {"name": "karras", "label": "Karras", "default_rho": 7.0, **more},
        ]

    @router.get("/sd-models")
    async def sd_models() -> Any:
        """The one model that is served."""
        where = {"hash": None, "sha256": None, "filename": model.name, "config": None}
        return [{"title": model.name, "model_name": model.name} | where]

    @router.get("/options")
    async def options() -> Any:
        """The web UI's settings that exist here."""
        values = {name: values[0] if values else [] for name, (values, _) in SETTINGS.items()}
        return {"sd_model_checkpoint": model.name, CLIP_SKIP: model.config.clip_skip} | values

    @router.post("/options", openapi_extra=json_object({"sd_model_checkpoint": {"type": "string"}}, closed=False))
    async def set_options(request: Request) -> Any:
        """Changes nothing: accepts the name of the served model and values that do nothing, and refuses others."""
        try:
            wanted = parsed_object(await read_json(request) or b"{}")
        except (BadJSON, BodyTooLarge) as error:
            raise from_body(error) from None
        _check_settings(model, wanted)
        if wanted.get(CLIP_SKIP) not in (None, model.config.clip_skip):
            message = f"{CLIP_SKIP}: send it with each request, in override_settings, or set clip_skip in the config"
            raise OpenAIError(400, message, CLIP_SKIP, "invalid_value")
        return {}

    add_lists(router, model)
    return router


def _check(model: PictureModel, body: Text2ImageBody) -> None:
    """Raises OpenAIError for what would change the picture and is not built."""
    _check_settings(model, body.override_settings or {}, "override_settings.")
    check_fields(body.others)
    check_scripts(body.other_scripts)
    if body.enable_hr:
        if isinstance(body, Image2ImageBody):
            raise OpenAIError(400, "enable_hr: is of text to image; leave it out", "enable_hr", "invalid_value")
        check_second_pass(body.others)
    with refusing(NAMES):
        for field in ("prompt", "negative_prompt"):
            prompt = getattr(body, field) or ""
            check_length(field, prompt)
            text = split_loras(field, prompt)[0] if field == "prompt" else prompt
            check_syntax(field, text, model.engine.backend.emphasis)
        scheduler, _ = sampler_named(body.sampler or model.config.scheduler, body.scheduler)
    check_sampler_fields(body.others, scheduler)


def _check_settings(model: PictureModel, settings: dict[str, Any], prefix: str = "") -> None:
    name = settings.get("sd_model_checkpoint")
    if name and str(name).partition(" [")[0] != model.name:  # the web UI appends a hash
        raise OpenAIError(404, f"The model '{name}' does not exist. Served here: {model.name}.", code="model_not_found")
    check_settings(settings, prefix)


def _size(model: PictureModel, body: Text2ImageBody) -> Size:
    width, height = model.default_size
    return model.size(body.width or width, body.height or height)


def _start(body: Image2ImageBody, size: Size) -> Start:
    fit: Fit = "crop" if body.resize_mode == 1 else "stretch"
    image = read_image(from_base64(body.init_images[0], "image"), "image")
    if not body.mask:
        return from_image(image, size, fit)
    if body.inpainting_fill not in (0, 1):
        what = f"inpainting_fill {body.inpainting_fill} is not offered; use 0 (the colors around) or 1 (the image)"
        raise RequestError("inpainting_fill", what)
    return from_mask(
        image,
        read_image(from_base64(body.mask, "mask"), "mask"),
        size,
        fit,
        inverted=bool(body.inpainting_mask_invert),
        blur=body.blur,
        filled=body.inpainting_fill == 0,
        only_masked=body.inpaint_full_res,
        padding=body.inpaint_full_res_padding,
    )


async def _answer(model: PictureModel, jobs: Jobs, body: Text2ImageBody, start: Start | None) -> Response:
    given: dict[str, Any] = {}
    if start is not None and isinstance(body, Image2ImageBody):
        given = {"image": start.image, "mask": start.mask, "strength": body.denoising_strength, "min_steps": 1}
    with refusing(NAMES):
        prompt, loras = split_loras("prompt", body.prompt)
        size = _size(model, body)
        second = second_pass_of(model, body, size) if body.enable_hr else None
        if units := body.control_units:
            given["controls"] = await model.decoded(lambda: controls_of_units(model, units, size, second, start))
        negative, emphasis = body.negative_prompt or "", model.engine.backend.emphasis
        wanted = PicturesRequest(
            prompt=prompt if emphasis else unescaped(prompt),
            loras=loras,
            size=size,
            second_pass=second,
            n=body.pictures,
            negative_prompt=negative if emphasis else unescaped(negative),
            emphasis=emphasis,
            clip_skip=body.layer if model.engine.backend.text_layers else None,  # as there, XL has its own
            seed=None if body.seed in (None, -1) else body.seed,
            num_inference_steps=body.steps,
            guidance_scale=body.cfg_scale,
            scheduler=body.sampler,
            schedule=body.scheduler,
            **given,
        )
        job = model.submit(wanted)
    jobs[job] = time.monotonic()
    pictures: list[FinishedPng] = []
    try:
        async for news in model.news(job, start.finish if start else None):
            if isinstance(news, FinishedPng):
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
    info = info_of(model, job, pictures)
    for field, text in () if emphasis else (("prompt", prompt), ("negative_prompt", negative)):
        info["warnings"] += bare_parentheses(field, text)
    return JSONResponse({"images": images, "parameters": body.sent, "info": json.dumps(info)})
