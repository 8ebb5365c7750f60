"""The programs that a server of pictures compiles, each with the shapes that it is compiled for."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from apps.arrays.programs import Key, ProgramSpec
from apps.stable_diffusion.engine.backends.programs import DenoisingState, PictureInputs, Programs
from apps.stable_diffusion.engine.controlnets.programs import ControlPrograms
from apps.stable_diffusion.engine.loras.layout import written
from apps.stable_diffusion.engine.loras.room import LoraRoom
from apps.stable_diffusion.engine.request import Size
from apps.stable_diffusion.engine.scheduling.schedules import COLUMNS

log = logging.getLogger("podslice")
OFF = ("xla_tpu_run_space_to_batch", "xla_tpu_run_space_to_batch_on_new_platforms")
"""Passes that split a picture's width into batches where a chip has few pictures: twice the time of the convolution."""

NAMES = {
    "denoise": "denoising",
    "decode": "decoder",
    "image": "image encoder",
    "control": "ControlNet",
    "control image": "ControlNet's image",
}
"""What a program is called while it compiles, by the first part of its key."""


@dataclass(frozen=True)
class ProgramList:
    """What programs a server of pictures has.

    Args:
        sizes: (width, height) in pixels.
        batch_sizes: pictures of a denoising step.
        loras: room for LoRAs, if there are any.
        controls: of ControlNets, if there are any.
    """

    programs: Programs
    sizes: tuple[Size, ...]
    batch_sizes: tuple[int, ...]
    loras: LoraRoom | None = None
    controls: ControlPrograms | None = None

    @property
    def mesh(self) -> Mesh:
        return self.programs.mesh

    def listed(self) -> Iterator[ProgramSpec]:
        """Every program that requests need. The weights come first among its arguments.

        Keys: `("text",)`, for each group `("denoise", group, pictures)`, and for each size `("decode", size)` and
        `("image", size)`; with LoRA `("lora",)`, which writes a slot of the pool. With ControlNets, for each size and
        each kind of them, `("control image", size, kind)` and `("control", size, pictures, kind)`.
        """
        programs, controls = self.programs, self.controls
        forms, shape, denoiser = programs.forms(self.sizes[0]), programs.shape, programs.denoiser
        texts = {name: forms[name] for name in programs.encoder.components}
        tokens = tuple(shape(each.shape, each.dtype) for each in programs.encoder.inputs())
        low_rank = None if self.loras is None else programs.low_rank(forms, self.loras)
        text_loras = [] if low_rank is None else [low_rank.texts]
        yield _spec(programs, ("text",), programs.encode_text, texts, tokens, *text_loras)
        if low_rank is not None:
            yield _spec(programs, ("lora",), written, low_rank.pool, low_rank.one, shape((), np.int32), donate=(0,))
        # Not for the others: the decoder would compile for over ten minutes of CPU, not three and a half.
        compiler = _compiler_options(programs.mesh.devices.flat[0])
        groups = {denoiser.group(size): size for size in reversed(self.sizes)}
        for group, size in reversed(groups.items()):
            for b in self.batch_sizes:
                more: list[Any] = []
                if low_rank is not None:
                    more = [low_rank.pool[denoiser.component], shape((b,), np.int32)]
                if controls is not None:
                    more = [*(more or (None, None)), controls.added(size, b)]
                arguments = forms[denoiser.component], *_pictures(programs, size, b), *more
                options: dict[str, Any] = {"donate": (2,), "options": compiler}
                yield _spec(programs, ("denoise", group, b), programs.denoise, *arguments, **options)
        for size in self.sizes:
            array, _, _ = _of_picture(programs, size)
            decode = partial(programs.decode, size)
            yield _spec(programs, ("decode", size), decode, forms["vae"], (array,) * programs.mesh.size)
            image, latents = shape((size[1], size[0], 3), np.uint8), shape(programs.latents(size))
            given = image, latents, latents, shape((2,))
            yield _spec(programs, ("image", size), programs.encode_image, forms["vae"], *given)
        if controls is not None:
            yield from _of_controls(programs, controls, self.sizes, self.batch_sizes, compiler)


def _of_controls(
    programs: Programs,
    controls: ControlPrograms,
    sizes: tuple[Size, ...],
    batch_sizes: tuple[int, ...],
    compiler: Mapping[str, bool],
) -> Iterator[ProgramSpec]:
    for kind, weights in enumerate(controls.forms()):
        run, make_small = partial(controls.residuals, kind), partial(controls.embed_image, kind)
        options: dict[str, Any] = {"out_shardings": controls.split, "options": compiler}
        for size in sizes:
            small, pixels = controls.small_image(kind, size), programs.shape((size[1], size[0], 3), np.uint8)
            yield _spec(programs, ("control image", size, kind), make_small, weights, pixels)
            for b in batch_sizes:
                pictures = _pictures(programs, size, b)[:3]
                added = controls.scales(b), programs.shape((), np.bool_), controls.added(size, b)
                arguments = weights, *pictures, (small,) * b, *added
                yield _spec(programs, ("control", size, b, kind), run, *arguments, **options)


def _pictures(programs: Programs, size: Size, b: int) -> tuple[Any, ...]:
    """Of b pictures: coefficients, states, inputs and noises."""
    array, mask, place = _of_picture(programs, size)
    text = programs.texts()
    fixed = PictureInputs(text, text if programs.guided else None, mask, array, array, place)
    return programs.shape((b, COLUMNS + 1)), (DenoisingState(array, array),) * b, (fixed,) * b, (array,) * b


def _of_picture(programs: Programs, size: Size) -> tuple[Any, Any, Any]:
    """Of its array, its mask, and its place."""
    latents, denoiser, shape = programs.latents(size), programs.denoiser, programs.shape
    place = denoiser.place(latents)
    places = None if place is None else shape(place.shape, place.dtype)
    return shape(denoiser.shape(latents)), shape(denoiser.mask_shape(latents)), places


def _spec(programs: Programs, key: Key, function: Callable[..., Any], *arguments: Any, **options: Any) -> ProgramSpec:
    options = {"out_shardings": programs.everywhere, **options}
    # With float32 a TPU is to multiply in float32 too, not in bfloat16.
    precision = "highest" if programs.dtype == np.float32 else "default"
    return ProgramSpec(key, PreciseFunction(function, precision), arguments, **options)


@dataclass(frozen=True)
class PreciseFunction:
    """A function whose products have a precision, as `jax.default_matmul_precision` has it."""

    function: Callable[..., Any]
    precision: str

    @property
    def __name__(self) -> str:
        """Of the compiled program, in profiles."""
        named = self.function.func if isinstance(self.function, partial) else self.function
        return str(getattr(named, "__name__", "program"))

    def __call__(self, *arguments: Any) -> Any:
        with jax.default_matmul_precision(self.precision):
            return self.function(*arguments)


def _compiler_options(device: jax.Device) -> dict[str, bool]:
    """The options that this device's compiler has: their names change between versions of libtpu."""
    options: dict[str, bool] = {}
    for name in OFF if device.platform == "tpu" else ():
        one = jax.ShapeDtypeStruct((), np.float32, sharding=jax.sharding.SingleDeviceSharding(device))
        try:
            ProgramSpec((name,), jnp.negative, (one,), options={name: False}).compiled()
            options[name] = False
        except jax.errors.JaxRuntimeError as error:
            log.warning("pictures may take longer, with few of them on a chip: %s", error)
    return options


def title(key: Key) -> str:
    """A program in words, for those who wait for it."""
    kind, *rest = key
    if kind in ("text", "lora"):
        return {"text": "text encoder", "lora": "slots for LoRA"}[kind]
    where = f"{rest[0]} patches" if isinstance(rest[0], int) else "{}x{}".format(*rest[0])
    name = NAMES[kind]
    return f"{name} {where}" + (f" batch {rest[1]}" if kind in ("denoise", "control") else "")
