"""LoRAs of a transformer: one batch of sizes, guidance, step counts and LoRAs of their own, against diffusers."""

from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.loras.room import LoraRoom
from apps.stable_diffusion.engine.request import LoraUse, PictureRequest
from tests.stable_diffusion.engine.flow.conftest import SIZES
from tests.stable_diffusion.engine.flow.test_z_image import ask, latents, reference, run

pytestmark = pytest.mark.slow

MIXED = (
    ask(SIZES[0], 4, 0.0, loras=(LoraUse("peft"),)),
    ask(SIZES[1], 2, 4.0, 11, prompt="two green squares", loras=(LoraUse("comfy", 0.7), LoraUse("kohya", -0.5))),
    ask(SIZES[2], 5, 1.5, 5, loras=(LoraUse("kohya"),)),
)


def draw(
    folder: Path, seed: int, rank: int, alpha: float, ends: tuple[str, str], start: str
) -> dict[str, torch.Tensor]:
    """Random matrices of the transformer's layers, as a trainer names them."""
    random, found = torch.Generator().manual_seed(seed), {}
    transformer = diffusers.ZImageTransformer2DModel.from_pretrained(folder / "transformer")
    for name, layer in transformer.named_modules():
        if not isinstance(layer, torch.nn.Linear) or not ("attention" in name or "feed_forward" in name):
            continue
        if start != "transformer.":  # as the original code names it
            name = name.replace(".to_out.0", ".out" if start == "diffusion_model." else ".to_out.0")
        key = start + (name.replace(".", "_") if start == "lora_unet_" else name)
        found[f"{key}.{ends[0]}.weight"] = torch.randn((rank, layer.in_features), generator=random) / 8
        found[f"{key}.{ends[1]}.weight"] = torch.randn((layer.out_features, rank), generator=random) / 2
        if start != "transformer.":
            found[f"{key}.alpha"] = torch.tensor(alpha)
    return found


@pytest.fixture(scope="module")
def files(z_image: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("loras")
    drawn = {
        "peft": draw(z_image, 1, 4, 4.0, ("lora_A", "lora_B"), "transformer."),
        "comfy": draw(z_image, 2, 2, 1.0, ("lora_down", "lora_up"), "diffusion_model."),
        "kohya": draw(z_image, 3, 3, 2.0, ("lora_down", "lora_up"), "lora_unet_"),
    }
    for name, tensors in drawn.items():
        save_file(tensors, folder / f"{name}.safetensors")
    return {name: folder / f"{name}.safetensors" for name in drawn}


def expected(folder: Path, files: dict[str, Path], request: PictureRequest) -> np.ndarray:
    """By diffusers, with the same files."""
    pipe = diffusers.DiffusionPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    for use in request.loras:
        pipe.load_lora_weights(str(files[use.name]), adapter_name=use.name)
    pipe.set_adapters([use.name for use in request.loras], [use.weight for use in request.loras])
    found = pipe(
        request.prompt,
        negative_prompt=request.negative_prompt,
        width=request.width,
        height=request.height,
        num_inference_steps=request.num_inference_steps,
        guidance_scale=request.guidance_scale,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="latent",
    ).images[0]
    return found.permute(1, 2, 0).numpy()


def test_a_batch_of_three_sizes_and_three_loras(z_image: Path, files: dict[str, Path], compile_cache: str) -> None:
    backend = JaxBackend(
        z_image,
        sizes=SIZES[:3],
        max_batch_size=3,
        dtype="float32",
        compile_cache=compile_cache,
        lora_room=LoraRoom(3, 8),
    )
    for name, path in files.items():
        backend.loras.load(name, str(path))
    backend.compile()
    compiled = backend.compiles_after_ready
    together = run(backend, *MIXED)
    for picture in together:
        backend.end(picture)
    assert backend.compiles_after_ready == compiled
    for request, picture in zip(MIXED, together):
        found = latents(backend, picture)
        np.testing.assert_allclose(found, expected(z_image, files, request), atol=1e-3)
        assert np.abs(found - reference(z_image, request)).max() > 0.1, "the LoRA changes the picture"
        (alone,) = run(backend, request)
        backend.end(alone)
        np.testing.assert_allclose(found, latents(backend, alone), atol=1e-4)
