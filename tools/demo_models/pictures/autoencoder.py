"""Trains the autoencoder: pictures to latents a quarter of their size and back, sharp enough to recognize shapes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from tools.demo_models.pictures.optimizer import Muon
from tools.demo_models.pictures.scenes import Scene, draw, training_scene
from tools.demo_models.pictures.training import (
    Clock,
    OnStep,
    Threads,
    TrainConfig,
    autocast,
    load_checkpoint,
    save_checkpoint,
)

KL_WEIGHT = 2e-4  # small: a little noise on the latents makes the decoder tolerate the denoiser's errors


def tensors(pictures: list[np.ndarray], device: torch.device) -> torch.Tensor:
    """uint8 pictures as the autoencoder's input: float [pictures, 3, 64, 64] from -1 to 1."""
    stacked = torch.from_numpy(np.stack(pictures)).to(device)
    return stacked.permute(0, 3, 1, 2).float() / 127.5 - 1


def _slopes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]


def reconstruction_loss(made: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Mean absolute error of the pixels and of their differences to their neighbors, which are the edges."""
    edges = sum(F.l1_loss(ours, theirs) for ours, theirs in zip(_slopes(made), _slopes(drawn)))
    return F.l1_loss(made, drawn) + F.mse_loss(made, drawn) + 0.5 * edges


def train_autoencoder(vae: AutoencoderKL, config: TrainConfig, clock: Clock, on_step: OnStep) -> int:
    """Trains in place, from the last checkpoint if there is one. Returns the number of the last step."""
    device = next(vae.parameters()).device
    optimizer = Muon(vae.parameters())
    step = load_checkpoint(config.work / "autoencoder.pt", clock, vae=vae, optimizer=optimizer)
    rng = random.Random(f"{config.seed}-autoencoder-{step}")
    threads = Threads()
    while (done := clock.done(step)) < 1:
        # Up, then down in a straight line.
        rate = config.vae_learning_rate * min(1.0, (step + 1) / 30, 1.02 - done)
        for group in optimizer.param_groups:
            group["lr"] = rate
        drawn = tensors([draw(training_scene(rng)) for _ in range(config.vae_batch)], device)
        with autocast(device):
            posterior = vae.encode(drawn).latent_dist
            made = vae.decode(posterior.sample()).sample
        divergence = posterior.kl().mean() / posterior.mean[0].numel()
        loss = reconstruction_loss(made.float(), drawn) + KL_WEIGHT * divergence
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        step += 1
        on_step(step, loss.item())
        threads.tick()
        if clock.checkpoint_due():
            save_checkpoint(config.work / "autoencoder.pt", step, clock, vae=vae, optimizer=optimizer)
    save_checkpoint(config.work / "autoencoder.pt", step, clock, vae=vae, optimizer=optimizer)
    return step


@torch.no_grad()
def encoded(vae: AutoencoderKL, scenes: Iterator[Scene], batch: int = 128) -> Iterator[torch.Tensor]:
    """The unscaled latents of scenes, a batch at a time."""
    device = next(vae.parameters()).device
    waiting: list[np.ndarray] = []

    def latents() -> torch.Tensor:
        with autocast(device):
            return vae.encode(tensors(waiting, device)).latent_dist.mean.float()

    for scene in scenes:
        waiting.append(draw(scene))
        if len(waiting) == batch:
            yield latents()
            waiting = []
    if waiting:
        yield latents()
