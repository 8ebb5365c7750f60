"""Pictures with ControlNets against diffusers' own pipelines, in float32."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.controlnets.use import ControlUse
from apps.stable_diffusion.engine.loras.pool import LoraRoom
from apps.stable_diffusion.engine.request import LoraUse, PictureRequest, SecondPass
from apps.stable_diffusion.engine.second_pass import second_request
from tests.stable_diffusion.engine.controlnets import tiny_controlnets
from tests.stable_diffusion.engine.loras import tiny_loras
from tests.stable_diffusion.engine.test_pictures import CLASSES, SIZE, ask, difference, make_with_latents

CLOSE = 1e-3  # of latents
KINDS = {"sd1": "StableDiffusion", "sd2": "StableDiffusion", "sdxl": "StableDiffusionXL"}
FAMILIES = ["sd1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sd2", "sdxl"))]


@dataclass(frozen=True)
class Studio:
    """A backend with the ControlNets `edges`, `depth` and `shuffle`, and the LoRA `ink`."""

    backend: JaxBackend
    family: str
    folder: Path
    nets: dict[str, Path]
    lora: Path

    def make(self, *requests: PictureRequest) -> list[tuple[np.ndarray, np.ndarray]]:
        """The latents and the pixels of pictures made in one batch."""
        return make_with_latents(self.backend, *requests)

    def reference(self, request: PictureRequest) -> tuple[np.ndarray, np.ndarray]:
        """The same through diffusers."""
        uses, more = request.controls, {}
        kind = "Inpaint" if request.mask is not None else "Img2Img" if request.image is not None else ""
        name = f"{KINDS[self.family]}{'ControlNet' if uses else ''}{kind}Pipeline"
        if uses:
            nets = [_net(self.nets[use.name], use) for use in uses]
            images = [Image.fromarray(use.image) for use in uses]
            more = {"control_image" if kind else "image": images}
            more |= {"controlnet_conditioning_scale": [use.weight for use in uses]}
            more |= {f"control_guidance_{end}": [getattr(use, end) for use in uses] for end in ("start", "end")}
        pipe = getattr(diffusers, name).from_pretrained(self.folder, **({"controlnet": nets} if uses else {}))
        if kind:
            more |= {"image": Image.fromarray(request.image), "strength": request.strength}
        if request.mask is not None:
            more |= {"mask_image": Image.fromarray(request.mask)}
        pipe.set_progress_bar_config(disable=True)
        pipe.scheduler = CLASSES[request.scheduler].from_config(pipe.scheduler.config, clip_sample=False)
        for use in request.loras:
            pipe.load_lora_weights(self.lora, adapter_name=use.name)
        found = [
            pipe(
                request.prompt,
                negative_prompt=request.negative_prompt or None,
                num_inference_steps=request.num_inference_steps,
                guidance_scale=request.guidance_scale,
                generator=torch.Generator().manual_seed(request.seed),
                width=request.width,
                height=request.height,
                output_type=output,
                **more,
            ).images[0]
            for output in ("latent", "pil")
        ]
        return found[0].permute(1, 2, 0).numpy(), np.asarray(found[1])


def _net(path: Path, use: ControlUse) -> Any:
    """A ControlNet that adds what the web UI's extension makes it add: `control_scales` in its scripts/hook.py."""
    net = diffusers.ControlNetModel.from_pretrained(path)
    plain = net.forward

    def forward(sample: torch.Tensor, *args: Any, **named: Any) -> Any:
        down, middle = plain(sample, *args, **named)
        made = [each * 0.825 ** float(12 - i) for i, each in enumerate([*down, middle])]
        if use.mode == "control" and len(sample) == 2:
            made = [torch.cat([torch.zeros_like(each[:1]), each[1:]]) for each in made]
        return made[:-1], made[-1]

    if use.mode != "balanced":
        net.forward = forward
    return net


@pytest.fixture(scope="module")
def studio(checkpoint: Callable, tmp_path_factory: Any, compile_cache: str) -> Callable[[str], Studio]:
    made: dict[str, Studio] = {}

    def make(family: str) -> Studio:
        if family not in made:
            folder, to = checkpoint(family), tmp_path_factory.mktemp("controlnets")
            nets = {
                "edges": tiny_controlnets.save(folder, to / "edges", 1),
                "depth": tiny_controlnets.save(folder, to / "depth", 2, controlnet_conditioning_channel_order="bgr"),
                "shuffle": tiny_controlnets.save(folder, to / "shuffle", 3, global_pool_conditions=True),
            }
            drawn = tiny_loras.kohya(tiny_loras.draw(folder, 1, 4, 2.0), family == "sdxl")
            lora = tiny_loras.write(to / "ink.safetensors", drawn)
            backend = JaxBackend(
                folder,
                sizes=[(SIZE, SIZE), (2 * SIZE, SIZE)],  # compiled at its first use
                max_batch_size=4,
                dtype="float32",
                compile_cache=compile_cache,
                lora_room=LoraRoom(2, 4),
                controlnets={name: str(path) for name, path in nets.items()},
            )
            backend.loras.load("ink", str(lora))
            made[family] = Studio(backend, family, folder, nets, lora)
        return made[family]

    return make


def use(name: str, seed: int = 1, **fields: Any) -> ControlUse:
    return ControlUse(name, tiny_controlnets.drawn(seed, SIZE), **fields)


MIXED = (
    ask("euler", 5, 4.0, controls=(use("edges"),)),
    ask("ddim", 6, 1.0, 7, controls=(use("depth", 2, weight=0.7, start=0.2, end=0.8), use("edges", 3, weight=0.5))),
    ask("dpm-solver++", 4, 2.5, 8, prompt="two green squares", negative_prompt="blue", controls=(use("shuffle", 4),)),
    ask("euler-ancestral", 4, 3.0, 9, loras=(LoraUse("ink"),)),
)
"""Three combinations and a picture without ControlNets, but with a LoRA."""


def far(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


def check(made: Studio, request: PictureRequest, latents: np.ndarray, pixels: np.ndarray) -> None:
    expected = made.reference(request)
    assert far(latents, expected[0]) < CLOSE and difference(pixels, expected[1]) <= 1, request


@pytest.mark.parametrize("family", FAMILIES)
def test_one_batch_of_several_controlnets_as_diffusers(studio: Callable, family: str) -> None:
    made: Studio = studio(family)
    for request, (latents, pixels) in zip(MIXED, made.make(*MIXED)):
        check(made, request, latents, pixels)
        alone = made.make(request)[0]
        assert far(latents, alone[0]) < CLOSE and difference(pixels, alone[1]) <= 1
        if request.controls:
            bare = made.make(replace(request, controls=()))[0]
            assert far(latents, bare[0]) > 100 * CLOSE, "the ControlNet changes the picture"


@pytest.mark.parametrize("family", FAMILIES)
def test_twice_the_same_and_with_a_lora(studio: Callable, family: str) -> None:
    made: Studio = studio(family)
    request = ask("ddim", 4, 3.0, loras=(LoraUse("ink"),), controls=(use("edges", 1), use("edges", 2, weight=0.4)))
    check(made, request, *made.make(request)[0])


def test_from_an_image_and_with_a_mask(studio: Callable) -> None:
    made: Studio = studio("sd1")
    image, mask = tiny_controlnets.drawn(9, SIZE), np.zeros((SIZE, SIZE), bool)
    mask[8:20, 4:30] = True
    start = ask("euler", 6, 3.0, image=image, strength=0.7, controls=(use("edges", end=0.5),))
    painted = ask("euler", 6, 3.0, image=image, mask=mask, strength=1.0, controls=(use("depth"),))
    for request, (latents, pixels) in zip((start, painted), made.make(start, painted)):
        check(made, request, latents, pixels)


@pytest.mark.parametrize("mode", ["prompt", "control"])
def test_emphasis(studio: Callable, mode: Any) -> None:
    made: Studio = studio("sd1")
    requests = [ask("ddim", 4, scale, controls=(use("edges", mode=mode),)) for scale in (3.0, 1.0)]
    for request, (latents, pixels) in zip(requests, made.make(*requests)):
        check(made, request, latents, pixels)
        balanced = replace(request, controls=(use("edges"),))
        assert far(latents, made.make(balanced)[0][0]) > 10 * CLOSE


def test_a_second_pass_has_its_own_map(studio: Callable) -> None:
    """The second pass is image to image from enlarged latents; here only which ControlNets it has, and their maps."""
    made: Studio = studio("sd1")
    wide = np.zeros((SIZE, 2 * SIZE, 3), np.uint8)
    both = replace(use("edges"), second_image=wide)
    second, first = ControlUse("depth", None, second_image=wide), use("shuffle")
    request = ask("ddim", 3, controls=(both, second, first), second_pass=SecondPass(2 * SIZE, SIZE))
    assert [one.use.name for one in made.backend.start(request).controls] == ["edges", "shuffle"]
    again = second_request(request, np.zeros((SIZE // 2, SIZE // 2, 4), np.float32))
    started = made.backend.start(again).controls
    assert [one.use.name for one in started] == ["edges", "depth"]
    assert {one.image.shape[:2] for one in started} == {(SIZE // 2, SIZE)}


@pytest.mark.parametrize(
    "uses, says",
    [
        (lambda: (use("none"),), "there is no ControlNet 'none'; choose one of: edges, depth, shuffle"),
        (lambda: (use("edges"),) * 4, "there are 4; a picture can have 3"),
        (lambda: (use("edges", weight=11),), "weight is 11; it can be 0 to 10"),
        (lambda: (use("edges", weight=float("nan")),), "weight is nan"),
        (lambda: (use("edges", start=0.6, end=0.5),), r"start is 0.6 and end is 0.5; they are shares of the steps"),
        (lambda: (use("edges", mode="both"),), "mode is 'both'; choose one of: balanced, prompt, control"),
        (lambda: (ControlUse("edges", np.zeros((8, 8, 3), np.uint8)),), r"it is \[8, 8, 3\]; the requested size needs"),
    ],
)
def test_what_is_refused(studio: Callable, uses: Callable, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        studio("sd1").backend.controls.check(ask("ddim", 3, controls=uses()).controls)
    assert refused.value.field == "controlnets"
