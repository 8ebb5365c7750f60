"""Each network against diffusers' or transformers' own, in float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from jax.sharding import SingleDeviceSharding

from apps.stable_diffusion.engine.model import text_encoder, unet, vae, weights
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint
from apps.stable_diffusion.engine.model.weights import NamedWeights

pytestmark = pytest.mark.slow

FAMILIES = ("sd1", "sd2", "sdxl")


def run(folder: Path, component: str, function: Callable[[NamedWeights], Any]) -> Any:
    """A function of a component's weights, loaded as the backend does."""
    checkpoint = Checkpoint(str(folder))
    entries = weights.required(checkpoint, component, function, np.dtype(np.float32))
    arrays = weights.load(checkpoint, entries, np.dtype(np.float32), SingleDeviceSharding(jax.devices()[0]))
    return jax.tree.map(np.asarray, jax.jit(lambda arrays: function(NamedWeights(arrays)))(arrays))


def close(ours: np.ndarray, theirs: torch.Tensor, nhwc: bool = False) -> None:
    reference = theirs.detach().numpy()
    reference = reference.transpose(0, 2, 3, 1) if nhwc else reference
    np.testing.assert_allclose(ours, reference, atol=1e-4 * max(1, np.abs(reference).max()))


def images(*shape: int, seed: int = 0) -> tuple[jax.Array, torch.Tensor]:
    """The same random picture as NHWC and as NCHW."""
    nchw = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return jnp.asarray(nchw.permute(0, 2, 3, 1).numpy()), nchw


@pytest.mark.parametrize("family", FAMILIES)
def test_text_encoder(checkpoint: Callable[[str], Path], family: str) -> None:
    folder = checkpoint(family)
    config = Checkpoint(str(folder)).config("text_encoder")
    model = transformers.CLIPTextModel.from_pretrained(folder / "text_encoder").eval()
    ids = torch.randint(0, 200, (3, 16), generator=torch.Generator().manual_seed(0))
    theirs = model(ids, output_hidden_states=True)
    ids = jnp.asarray(ids.numpy())
    close(run(folder, "text_encoder", lambda w: text_encoder.encode(w, config, ids)[0]), theirs.last_hidden_state)
    penultimate = run(folder, "text_encoder", lambda w: text_encoder.encode(w, config, ids, penultimate=True)[0])
    close(penultimate, theirs.hidden_states[-2])


@pytest.mark.parametrize("eos", [None, 2])
def test_projecting_text_encoder(checkpoint: Callable[[str], Path], eos: int | None) -> None:
    folder = checkpoint("sdxl")
    config = Checkpoint(str(folder)).config("text_encoder_2")
    model = transformers.CLIPTextModelWithProjection.from_pretrained(folder / "text_encoder_2").eval()
    end = config["eos_token_id"]
    if eos is not None:
        config["eos_token_id"] = model.text_model.eos_token_id = eos
    ids = torch.tensor([[end - 1, 5, 6, end, 0, 0, 0, 0], [end - 1, 5, end, end, end, end, end, end]])
    theirs = model(ids, output_hidden_states=True)
    ids = jnp.asarray(ids.numpy())
    context, pooled = run(folder, "text_encoder_2", lambda w: text_encoder.encode(w, config, ids, True, True))
    close(context, theirs.hidden_states[-2])
    close(pooled, theirs.text_embeds)


@pytest.mark.parametrize(("family", "height", "width"), [*((f, 16, 12) for f in FAMILIES), ("sd1", 17, 15)])
def test_unet(checkpoint: Callable[[str], Path], family: str, height: int, width: int) -> None:
    """The odd size is that of pictures whose latents cannot be halved evenly."""
    folder = checkpoint(family)
    model = diffusers.UNet2DConditionModel.from_pretrained(folder / "unet").eval()
    arch = unet.UNetArchitecture.of(Checkpoint(str(folder)).config("unet"))
    x, x_torch = images(2, 4, height, width)
    time = torch.tensor([999.0, 12.5])
    context = torch.randn(2, 7, model.config.cross_attention_dim, generator=torch.Generator().manual_seed(1))
    pooled = torch.randn(2, 24, generator=torch.Generator().manual_seed(2))
    sizes = torch.tensor([[32.0, 24, 0, 0, 32, 24], [64.0, 64, 1, 2, 32, 24]])
    more = {"added_cond_kwargs": {"text_embeds": pooled, "time_ids": sizes}} if family == "sdxl" else {}
    theirs = model(x_torch, time, context, **more).sample
    t, *conditioning = (jnp.asarray(array.numpy()) for array in (time, context, pooled, sizes))
    cond = unet.Conditioning(*conditioning)
    ours = run(folder, "unet", lambda w: unet.predict(w, arch, x, t, cond, "xla"))
    close(ours, theirs, nhwc=True)


def test_vae(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("sd1")
    model = diffusers.AutoencoderKL.from_pretrained(folder / "vae").eval()
    arch = vae.VaeArchitecture.of(Checkpoint(str(folder)).config("vae"))
    assert arch.reduction == 2
    pixels, pixels_torch = images(2, 3, 24, 32)
    theirs = model.encode(pixels_torch).latent_dist
    mean, deviation = run(folder, "vae", lambda w: vae.encode(w, arch, pixels, "xla"))
    close(mean, theirs.mean, nhwc=True)
    close(deviation, theirs.std, nhwc=True)
    latents, latents_torch = images(2, 4, 12, 16, seed=1)
    decoded = run(folder, "vae", lambda w: vae.decode(w, arch, latents, "xla"))
    close(decoded, model.decode(latents_torch).sample, nhwc=True)


def test_names_of_older_checkpoints(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """transformers wrote text_model. before a text encoder's names, diffusers other ones for a VAE's attention."""
    import shutil

    from safetensors.numpy import load_file, save_file

    shutil.copytree(checkpoint("sd1"), tmp_path, dirs_exist_ok=True)
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    for file in (tmp_path / "vae/diffusion_pytorch_model.safetensors", tmp_path / "text_encoder/model.safetensors"):
        renamed = {}
        for name, array in load_file(file).items():
            for new, before in old.items():
                name = name.replace(f".{new}.", f".{before}.") if file.parent.name == "vae" else name
            prefix = "text_model." if file.parent.name == "text_encoder" else ""
            renamed[prefix + name.removeprefix("text_model.")] = array
        save_file(renamed, file)
    for component, function in (
        ("vae", lambda w: w["decoder"]["mid_block"]["attentions"][0]["to_out"][0].get("weight", 32, 32)),
        ("text_encoder", lambda w: w["final_layer_norm"].get("bias", 32)),
    ):
        np.testing.assert_array_equal(run(tmp_path, component, function), run(checkpoint("sd1"), component, function))
