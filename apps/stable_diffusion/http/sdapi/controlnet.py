"""The web UI's ControlNet extension: its units in `alwayson_scripts`, and the lists that its clients ask for.

Maps are sent as they are: edges, depth and poses are not found in photos here, which takes networks of their own.

Sources read: internal_controlnet/args.py, scripts/enums.py, scripts/api.py and scripts/controlnet.py of the extension.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter
from PIL import Image, ImageOps
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.controlnets.use import MODES, MOST, ControlMode, ControlUse
from apps.stable_diffusion.engine.request import SecondPass, Size
from apps.stable_diffusion.http.controls import MapFit, map_of
from apps.stable_diffusion.http.sdapi.inpainting import Start
from apps.stable_diffusion.http.uploads import flattened, from_base64, read_image
from apps.stable_diffusion.pictures import PictureModel

FITS: dict[str | int, MapFit] = {
    "Just Resize": "stretch", "Crop and Resize": "crop", "Resize and Fill": "fill", 0: "stretch", 1: "crop", 2: "fill",
    "Scale to Fit (Inner Fit)": "crop", "Inner Fit (Scale to Fit)": "crop",
    "Envelope (Outer Fit)": "fill", "Outer Fit (Shrink to Fit)": "fill",
}  # fmt: skip
MODES_BY_NAME: dict[str | int, ControlMode] = {
    written: mode for i, (mode, name) in enumerate(MODES.items()) for written in (name, i)
}
INVERT = "invert (from white bg & black line)"
MODULES = {"none": False, "invert": True, INVERT: True}
"""What may be done to an image before -> whether its colors are turned around."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "mask": (), "mask_image": (), "effective_region_mask": (), "advanced_weighting": (), "ipadapter_input": (),
    "animatediff_batch": (False,), "loopback": (False,), "batch_images": (), "union_control_type": ("Unknown",),
}  # fmt: skip
"""Fields that would change the picture and are not built -> values that do nothing; null, "" and [] always do."""
MAX_WEIGHT = 2.0
API_VERSION = 3
"""As `/controlnet/version` has it: units are in `alwayson_scripts`."""


class ControlUnit(BaseModel):
    """A unit of the ControlNet extension. What belongs to preprocessors and memory is ignored."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), use_attribute_docstrings=True)

    enabled: bool = True
    module: str = "none"
    """`none`, or `invert (from white bg & black line)`: other preprocessors are not run here."""
    model: str
    """A name of `/controlnet/model_list`."""
    image: str | dict[str, Any] | None = Field(None, validation_alias=AliasChoices("image", "input_image"))
    """The map, as base64. Default: the image of image to image."""
    weight: float = Field(1.0, ge=0, le=MAX_WEIGHT, allow_inf_nan=False)
    resize_mode: str | int = "Crop and Resize"
    guidance_start: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)
    guidance_end: float = Field(
        1.0, ge=0, le=1, allow_inf_nan=False, validation_alias=AliasChoices("guidance_end", "guidance")
    )
    control_mode: str | int = "Balanced"
    hr_option: Literal["Both", "Low res only", "High res only"] = "Both"
    """With `enable_hr`: in which passes."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, unit: Any) -> Any:
        return {name: value for name, value in unit.items() if value is not None} if isinstance(unit, dict) else unit

    @field_validator("module")
    @classmethod
    def _offered_module(cls, value: str) -> str:
        if value.lower() not in MODULES:
            raise ValueError(f"{value!r:.100} is not run here: send the map that it makes, and module none")
        return value.lower()

    @field_validator("resize_mode", "control_mode")
    @classmethod
    def _known(cls, value: str | int, info: Any) -> str | int:
        known: dict[str | int, Any] = FITS if info.field_name == "resize_mode" else MODES_BY_NAME
        if value not in known:
            names = ", ".join(repr(each) for each in known if isinstance(each, str))
            raise ValueError(f"{value!r:.100} is not one of {names}")
        return value

    @field_validator("image")
    @classmethod
    def _one_image(cls, value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("mask") or not isinstance(value.get("image"), str):
                raise ValueError("must be base64; a mask is not offered here")
            return value["image"]
        return value or None

    @model_validator(mode="after")
    def _nothing_else(self) -> "ControlUnit":
        for name, values in NEUTRAL.items():
            value = (self.model_extra or {}).get(name)
            if value not in (None, "", [], {}, *values):
                raise ValueError(f"{name} is not offered here; leave it out")
        return self


class ControlNetScript(BaseModel):
    args: list[ControlUnit] = Field(max_length=64)


class AlwaysOnScripts(BaseModel):
    """Scripts that run for every picture. Those that are switched off are ignored, others but ControlNet refused."""

    model_config = ConfigDict(extra="allow")

    controlnet: ControlNetScript | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, scripts: Any) -> Any:
        """The script's name has capitals or not; its units are a list, or one."""
        if not isinstance(scripts, dict):
            return scripts
        found = {name: value for name, value in scripts.items() if str(name).lower() != "controlnet"}
        for name in scripts.keys() - found.keys():
            script = scripts[name]
            args = script.get("args") if isinstance(script, dict) else script
            units = args if isinstance(args, list) else [args]
            if any(isinstance(unit, bool) for unit in units):
                units = [unit for unit in units if not isinstance(unit, bool)] if units[0] is not False else []
            on = [unit for unit in units if unit and not (isinstance(unit, dict) and unit.get("enabled") is False)]
            found["controlnet"] = {"args": on}
        return found


def controls_of_units(
    model: PictureModel, units: Sequence[ControlUnit], size: Size, second: SecondPass | None, start: Start | None
) -> tuple[ControlUse, ...]:
    """What the engine is asked for, with decoded maps. Raises RequestError."""
    if len(units) > MOST:
        raise RequestError("controlnets", f"controlnets: {len(units)} units are on; a picture can have {MOST}")
    return tuple(_use(model, unit, size, second, start) for unit in units)


def _use(
    model: PictureModel, unit: ControlUnit, size: Size, second: SecondPass | None, start: Start | None
) -> ControlUse:
    fit = FITS[unit.resize_mode]
    if isinstance(unit.image, str):
        image = flattened(read_image(from_base64(unit.image, "controlnets"), "controlnets"))
    elif start is not None:
        image = start.original
    else:
        raise RequestError("controlnets", "controlnets: a unit has no image, which its model reads")
    if MODULES[unit.module]:
        image = ImageOps.invert(image)

    def fitted_to(wanted: Size) -> np.ndarray:
        if start is not None and start.box is not None:  # only what is painted
            part = Image.fromarray(map_of(image, start.original.size, fit)).crop(start.box)
            return map_of(part, wanted, "fill")
        return map_of(image, wanted, fit)

    again = None
    if second is not None and unit.hr_option != "Low res only":
        again = fitted_to((second.width, second.height))
    return ControlUse(
        name=_named(model, unit.model),
        image=None if second is not None and unit.hr_option == "High res only" else fitted_to(size),
        weight=unit.weight,
        start=unit.guidance_start,
        end=unit.guidance_end,
        mode=MODES_BY_NAME[unit.control_mode],
        second_image=again,
    )


def _named(model: PictureModel, written: str) -> str:
    """A ControlNet's name, after which clients write a hash, with capitals or without."""
    name = written.partition(" [")[0]
    return next((own for own in model.controls.names if own.lower() == name.lower()), name)


def controlnet_router(model: PictureModel) -> APIRouter:
    """The extension's lists."""
    router = APIRouter(prefix="/controlnet")

    @router.get("/version")
    async def version() -> Any:
        """Of the extension's API."""
        return {"version": API_VERSION}

    @router.get("/model_list")
    async def model_list() -> Any:
        """The ControlNets that units may name."""
        return {"model_list": list(model.controls.names)}

    @router.get("/module_list")
    async def module_list() -> Any:
        """What may be done to an image before."""
        names = ["none", INVERT]
        return {"module_list": names, "module_detail": {name: {"model_free": False, "sliders": []} for name in names}}

    @router.get("/control_types")
    async def control_types() -> Any:
        """All in one type."""
        lists = {"module_list": ["none", INVERT], "model_list": ["None", *model.controls.names]}
        return {"control_types": {"All": lists | {"default_option": "none", "default_model": "None"}}}

    @router.get("/settings")
    async def settings() -> Any:
        """How many units a picture can have."""
        return {"control_net_unit_count": MOST}

    return router
