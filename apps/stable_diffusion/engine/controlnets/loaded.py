"""The ControlNets on the devices, and what they add to a batch's steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from apps.arrays.model_folder import CheckpointError
from apps.stable_diffusion.engine.backends.programs import Programs
from apps.stable_diffusion.engine.controlnets.file import ControlNetFile
from apps.stable_diffusion.engine.controlnets.network import COMPONENT, ControlNetArchitecture, Residuals
from apps.stable_diffusion.engine.controlnets.programs import ControlPrograms, zeros_on_devices
from apps.stable_diffusion.engine.controlnets.use import ControlUse, KnownControls
from apps.stable_diffusion.engine.denoisers.unet import UNetDenoiser
from apps.stable_diffusion.engine.model import weights
from apps.stable_diffusion.engine.request import PictureRequest, Size

Run = Callable[..., Any]
"""Runs a compiled program: its key, then its arguments."""


class ControlFile(NamedTuple):
    """An opened ControlNet, of which headers were read."""

    file: ControlNetFile
    arch: ControlNetArchitecture


@dataclass(frozen=True)
class StartedControl:
    """A ControlNet of a picture being made."""

    use: ControlUse
    image: jax.Array
    """As `ControlPrograms.embed_image` makes it."""


class Controlled(Protocol):
    """A picture being made, as far as it matters here."""

    controls: tuple[StartedControl, ...]

    @property
    def steps_done(self) -> int: ...

    @property
    def steps_total(self) -> int: ...


class ControlNets:
    """Those of a server, by name.

    Args:
        programs, files: of `control_programs`.

    Raises:
        CheckpointError: one cannot be read, or is for another model.
    """

    def __init__(self, programs: ControlPrograms, files: Mapping[str, ControlFile]) -> None:
        self.programs = programs
        self.known = KnownControls(tuple(files))
        self._kinds = {name: programs.kinds.index(each.arch) for name, each in files.items()}
        self._files = {name: each.file for name, each in files.items()}
        self._weights = {name: self._load(name, file) for name, file in self._files.items()}
        self._constants: dict[Any, Any] = {}

    def _load(self, name: str, file: ControlNetFile) -> dict[str, jax.Array]:
        dtype = np.dtype(self.programs.base.dtype)
        try:
            entries = weights.required(file, COMPONENT, self.programs.function(self._kinds[name]), dtype)
        except CheckpointError as error:
            raise CheckpointError(f"{error}: it is not whole, or for another kind of model") from None
        return weights.load(file, entries, dtype, self.programs.base.everywhere)

    def make_ready(self, sizes: Sequence[Size], batch_sizes: Sequence[int]) -> None:
        """Make the arrays for pictures without ControlNets: those of a large batch are hundreds of megabytes."""
        for size in sizes:
            for b in batch_sizes:
                self._nothing(size, b)

    def started(self, request: PictureRequest, run: Run) -> tuple[StartedControl, ...]:
        """Those of a picture. Its images are made small once, not in every step."""
        made = []
        for use in request.controls:
            if use.image is not None:
                key = "control image", (request.width, request.height), self._kinds[use.name]
                pixels = use.image[..., ::-1] if self._files[use.name].bgr else use.image
                put = jax.device_put(np.ascontiguousarray(pixels), self.programs.base.everywhere)
                made.append(StartedControl(use, run(key, self._weights[use.name], put)))
        return tuple(made)

    def added(
        self,
        size: Size,
        b: int,
        pictures: Sequence[Controlled],
        run: Run,
        coefficients: jax.Array,
        states: tuple[Any, ...],
        inputs: tuple[Any, ...],
    ) -> Residuals:
        """What is added to the next step of a batch.

        Args:
            b: of the programs; padding rows come after the pictures.
            coefficients, states, inputs: as the denoising program takes them.
        """
        total = self._nothing(size, b)
        for name, kind in self._kinds.items():
            own = [
                [one for one in picture.controls if one.use.name == name and _counts(one.use, picture)]
                for picture in pictures
            ]
            for turn in range(max(map(len, own))):
                images = [self._no_image(kind, size)] * b
                scales = np.zeros(self.programs.scales(b).shape, np.float32)
                passes, pooled = len(scales) // b, self._files[name].pooled
                for i, its in enumerate(own):
                    if turn < len(its):
                        images[i] = its[turn].image
                        scales[i * passes : (i + 1) * passes] = its[turn].use.scales(passes, scales.shape[1], pooled)
                how = jax.device_put((scales, np.bool_(pooled)), self.programs.base.everywhere)
                given = coefficients, states, inputs, tuple(images), *how, total
                total = run(("control", size, b, kind), self._weights[name], *given)
        return total

    def _nothing(self, size: Size, b: int) -> Residuals:
        return self._constant(("nothing", size, b), lambda: zeros_on_devices(self.programs.added(size, b)))

    def _no_image(self, kind: int, size: Size) -> jax.Array:
        form = self.programs.small_image(kind, size)
        return self._constant(("no image", kind, size), lambda: zeros_on_devices((form,))[0])

    def _constant(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]


def control_programs(
    locations: Mapping[str, str], unet: Mapping[str, Any], programs: Programs
) -> tuple[ControlPrograms, dict[str, ControlFile]]:
    """The programs of ControlNets, and these by name.

    Args:
        locations: by name; see `ControlNetFile`.
        unet: config of the model's UNet.
        programs: the model's.

    Raises:
        CheckpointError: one cannot be read, or is for another model.
        ValueError: the model has no UNet.
    """
    denoiser = programs.denoiser
    if not isinstance(denoiser, UNetDenoiser):
        raise ValueError("controlnets are for Stable Diffusion 1.x, 2.x and XL: leave them out for this model")
    files = {name: ControlNetFile(location, unet) for name, location in locations.items()}
    found = {name: ControlFile(file, _architecture(file, denoiser)) for name, file in files.items()}
    kinds = tuple(dict.fromkeys(each.arch for each in found.values()))
    return ControlPrograms(programs, denoiser, kinds), found


def _counts(use: ControlUse, picture: Controlled) -> bool:
    return use.weight > 0 and use.at(picture.steps_done, picture.steps_total)


def _architecture(file: ControlNetFile, denoiser: UNetDenoiser) -> ControlNetArchitecture:
    """Raises CheckpointError if what it adds does not fit the UNet."""
    where, unet = file.where(COMPONENT), denoiser.arch
    arch = ControlNetArchitecture.of(file.config)
    if (arch.half.channels, arch.half.resnets) != (unet.channels, unet.resnets):
        raise CheckpointError(
            f"{where} is for another kind of model: its channels are {list(arch.half.channels)}, and this model's UNet "
            f"has {list(unet.channels)}"
        )
    if arch.reduction != denoiser.reduction:
        raise CheckpointError(
            f"{where}: it makes an image {arch.reduction} times smaller, and this model needs {denoiser.reduction}"
        )
    return arch
