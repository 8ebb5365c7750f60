"""Trains the denoiser and the text encoder together, on the latents of pictures drawn and encoded once."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

from tools.demo_models.pictures.autoencoder import encoded
from tools.demo_models.pictures.model import build_scheduler
from tools.demo_models.pictures.optimizer import Muon
from tools.demo_models.pictures.scenes import Scene, training_caption, training_scene
from tools.demo_models.pictures.training import (
    Clock,
    OnStep,
    Threads,
    TrainConfig,
    autocast,
    load_checkpoint,
    save_checkpoint,
)

NO_CAPTION = 0.1  # share of examples without a caption: guidance needs an unconditional denoiser too
AVERAGED_STEPS = 100  # the saved weights are a moving average over about this many steps
NOISIER = 1.5  # above 1, noisier steps are trained on more often: they determine colors and places


def training_scenes(config: TrainConfig) -> list[Scene]:
    """The training scenes, always the same ones for a seed."""
    rng = random.Random(f"{config.seed}-scenes")
    return [training_scene(rng) for _ in range(config.pictures)]


def training_latents(vae: AutoencoderKL, scenes: list[Scene], kept: Path) -> torch.Tensor:
    """The latents of the scenes, each channel at mean 0 and variance 1, from the file `kept` if it is there.

    The autoencoder is changed to produce and accept latents of that scale.
    """
    if kept.exists():
        latents = torch.load(kept, weights_only=True)
    else:
        latents = torch.cat([batch.cpu() for batch in encoded(vae, iter(scenes))])
        torch.save(latents, kept)
    mean, std = latents.mean((0, 2, 3)), latents.std((0, 2, 3))
    normalise(vae, mean, std)
    return (latents - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)


@torch.no_grad()
def normalise(vae: AutoencoderKL, mean: torch.Tensor, std: torch.Tensor) -> None:
    """Changes the autoencoder so that its latents are (latents - mean) / std by channel; its pictures stay the same.

    Diffusers' one scaling factor would leave a channel of wide latents less noisy than the others at each timestep.
    """
    mean, std = (one.to(vae.quant_conv.weight.device) for one in (mean, std))
    into, back = vae.quant_conv, vae.post_quant_conv
    channels = len(mean)
    into.bias[:channels] = (into.bias[:channels] - mean) / std
    into.weight[:channels] /= std.view(-1, 1, 1, 1)
    into.bias[channels:] -= 2 * std.log()  # the other half of the outputs are logarithms of variances
    back.bias += back.weight[:, :, 0, 0] @ mean
    back.weight *= std.view(1, -1, 1, 1)
    vae.register_to_config(scaling_factor=1.0)


def token_ids(tokenizer: CLIPTokenizer, captions: list[str]) -> torch.Tensor:
    """Token ids, padded like the pipeline's: [captions, length]."""
    return tokenizer(
        captions, padding="max_length", max_length=tokenizer.model_max_length, truncation=True, return_tensors="pt"
    ).input_ids


@torch.no_grad()
def exchange(params: list[torch.nn.Parameter], average: list[torch.Tensor]) -> None:
    """Swaps the trained weights and the averaged ones."""
    for param, mean in zip(params, average):
        ours = param.clone()
        param.copy_(mean)
        mean.copy_(ours)


def train_denoiser(
    unet: UNet2DConditionModel,
    text_encoder: CLIPTextModel,
    tokenizer: CLIPTokenizer,
    examples: tuple[list[Scene], torch.Tensor],
    config: TrainConfig,
    clock: Clock,
    on_step: OnStep,
    on_checkpoint: Callable[[], None] = lambda: None,
) -> int:
    """Trains in place, from the last checkpoint if there is one. Returns the number of the last step.

    The modules have the averaged weights while `on_checkpoint` is called, and at the end.
    """
    device = unet.device
    scenes, latents = examples
    latents = latents.to(device)
    params = [*unet.parameters(), *text_encoder.parameters()]
    average = [param.detach().clone() for param in params]
    tables = [param for name, param in text_encoder.named_parameters() if "embedding" in name]
    optimizer = Muon(params, adam=tables)
    parts = {"unet": unet, "text_encoder": text_encoder, "optimizer": optimizer, "average": average}
    path = config.work / "denoiser.pt"
    step = load_checkpoint(path, clock, **parts)
    rng = random.Random(f"{config.seed}-denoiser-{step}")
    torch.manual_seed(rng.getrandbits(32))
    kept = build_scheduler().alphas_cumprod.to(device)  # the share of the picture that is left, by timestep

    def save() -> None:
        save_checkpoint(path, step, clock, **parts)
        exchange(params, average)
        on_checkpoint()

    threads = Threads()
    while (done := clock.done(step)) < 1:
        # Up, then down in half a cosine.
        rate = config.learning_rate * min(1.0, (step + 1) / 100) * max(0.01, 0.5 + 0.5 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        chosen = [rng.randrange(len(scenes)) for _ in range(config.batch)]
        captions = ["" if rng.random() < NO_CAPTION else training_caption(rng, scenes[one]) for one in chosen]
        clean = latents[chosen]
        noise = torch.randn_like(clean)
        drawn = torch.rand(config.batch, device=device)
        timesteps = ((1 - (1 - drawn) ** NOISIER) * len(kept)).long().clamp(max=len(kept) - 1)
        signal, rest = (share.sqrt().view(-1, 1, 1, 1) for share in (kept[timesteps], 1 - kept[timesteps]))
        with autocast(device):
            states = text_encoder(token_ids(tokenizer, captions).to(device))[0]
            velocity = unet(signal * clean + rest * noise, timesteps, encoder_hidden_states=states).sample
        loss = F.mse_loss(velocity.float(), signal * noise - rest * clean)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        step += 1
        # A short memory at the start, when the weights are still bad.
        decay = min(1 - 1 / AVERAGED_STEPS, (1 + step) / (10 + step))
        torch._foreach_lerp_(average, [param.detach() for param in params], 1 - decay)
        on_step(step, loss.item())
        threads.tick()
        if clock.checkpoint_due():
            save()
            exchange(params, average)
    save()
    return step
