"""Pictures with LoRA against diffusers' own pipeline with `load_lora_weights` and `set_adapters`, in float32."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.loras.pool import LoraRoom
from apps.stable_diffusion.engine.request import LoraUse, PictureRequest
from tests.stable_diffusion.engine.loras import tiny_loras
from tests.stable_diffusion.engine.test_pictures import CLASSES, ask, difference, make_with_latents

CLOSE = 1e-3  # of latents


@dataclass(frozen=True)
class Studio:
    """A backend with the LoRAs `every` (kohya), `style` (PEFT, attention alone) and `face` (kohya, rank 3)."""

    backend: JaxBackend
    folder: Path
    files: dict[str, Path]

    def make(self, *requests: PictureRequest) -> list[tuple[np.ndarray, np.ndarray]]:
        """The latents and the pixels of pictures made in one batch."""
        return make_with_latents(self.backend, *requests)

    def reference(self, request: PictureRequest) -> tuple[np.ndarray, np.ndarray]:
        """The same through diffusers, whose text encoders have the weight of the UNet or one of their own."""
        pipe = diffusers.DiffusionPipeline.from_pretrained(self.folder)
        pipe.set_progress_bar_config(disable=True)
        pipe.scheduler = CLASSES[request.scheduler].from_config(pipe.scheduler.config, clip_sample=False)
        for use in request.loras:
            pipe.load_lora_weights(self.files[use.name], adapter_name=use.name)
        if request.loras:
            encoders = [name for name in ("text_encoder", "text_encoder_2") if getattr(pipe, name, None) is not None]
            weights = [{"unet": use.weight, **dict.fromkeys(encoders, use.text_weight)} for use in request.loras]
            pipe.set_adapters([use.name for use in request.loras], weights)
        found = [
            pipe(
                request.prompt,
                negative_prompt=request.negative_prompt or None,
                num_inference_steps=request.num_inference_steps,
                guidance_scale=request.guidance_scale,
                generator=torch.Generator().manual_seed(request.seed),
                width=request.width,
                height=request.height,
                output_type=kind,
            ).images[0]
            for kind in ("latent", "pil")
        ]
        del pipe
        gc.collect()
        return found[0].permute(1, 2, 0).numpy(), np.asarray(found[1])


def studio(folder: Path, family: str, to: Path, compile_cache: str, slots: int = 3) -> Studio:
    is_xl = family == "sdxl"
    drawn = {
        "every": tiny_loras.kohya(tiny_loras.draw(folder, 1, 4, 2.0), is_xl),
        "style": tiny_loras.peft(tiny_loras.draw(folder, 2, 2, 2.0, tiny_loras.attention)),
        "face": tiny_loras.kohya(tiny_loras.draw(folder, 3, 3, 1.0, tiny_loras.attention), is_xl),
    }
    files = {name: tiny_loras.write(to / f"{name}.safetensors", tensors) for name, tensors in drawn.items()}
    backend = JaxBackend(
        folder,
        sizes=[(32, 32)],
        max_batch_size=4,
        dtype="float32",
        compile_cache=compile_cache,
        lora_room=LoraRoom(slots, 8),
    )
    for name, path in files.items():
        backend.loras.load(name, str(path))
    backend.compile()
    return Studio(backend, folder, files)


@pytest.fixture(scope="module")
def plain(checkpoint: Callable, tmp_path_factory: Any, compile_cache: str) -> Studio:
    return studio(checkpoint("sd1"), "sd1", tmp_path_factory.mktemp("loras"), compile_cache)


@pytest.fixture(scope="module")
def second(checkpoint: Callable, tmp_path_factory: Any, compile_cache: str) -> Studio:
    return studio(checkpoint("sd2"), "sd2", tmp_path_factory.mktemp("loras"), compile_cache)


@pytest.fixture(scope="module")
def xl(checkpoint: Callable, tmp_path_factory: Any, compile_cache: str) -> Studio:
    return studio(checkpoint("sdxl"), "sdxl", tmp_path_factory.mktemp("loras"), compile_cache)


MIXED = (
    ask("euler", 5, 4.0, loras=(LoraUse("every"),)),
    ask("ddim", 3, 1.0, 7, loras=(LoraUse("style", 0.8, 0.8), LoraUse("face", -0.5, 0.25))),
    ask(
        "dpm-solver++",
        4,
        2.5,
        8,
        prompt="two green squares",
        negative_prompt="blue",
        loras=(LoraUse("face", 0.0, 1.0),),
    ),
    ask("euler-ancestral", 4, 3.0, 9),
)
"""Three combinations and a picture without LoRA; the third changes the text encoders alone."""


def far(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["plain", *(pytest.param(name, marks=pytest.mark.slow) for name in ("second", "xl"))]
)
def test_one_batch_of_three_combinations_as_diffusers(family: str, request: Any) -> None:
    made: Studio = request.getfixturevalue(family)
    together = made.make(*MIXED)
    for asked, (latents, pixels) in zip(MIXED, together):
        expected = made.reference(asked)
        assert far(latents, expected[0]) < CLOSE and difference(pixels, expected[1]) <= 1, asked
        alone = made.make(asked)[0]
        assert far(latents, alone[0]) < CLOSE and difference(pixels, alone[1]) <= 1
        if asked.loras:
            bare = made.make(replace(asked, loras=()))[0]
            assert far(latents, bare[0]) > 100 * CLOSE, "the LoRA changes the picture"
    assert made.backend.compiles_after_ready == 0
