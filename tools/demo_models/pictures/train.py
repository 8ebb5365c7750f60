"""Makes the demo model: `python -m tools.demo_models.pictures.train`.

It draws its own pictures (`scenes`), trains an autoencoder on them and then a denoiser with its text encoder, on a
GPU if torch has one and otherwise on the CPU, scores the model on held-out combinations (`evaluate`), and writes a
folder for diffusers. `--resume` continues a run that was stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import CLIPTokenizer

from tools.demo_models.pictures.autoencoder import train_autoencoder
from tools.demo_models.pictures.card import write_card
from tools.demo_models.pictures.denoiser import train_denoiser, training_latents, training_scenes
from tools.demo_models.pictures.evaluate import GALLERY, MODEL, measured, show, write_pictures
from tools.demo_models.pictures.model import (
    ModelConfig,
    build_pipeline,
    build_text_encoder,
    build_unet,
    build_vae,
    save_pipeline,
)
from tools.demo_models.pictures.tokenizer import make_tokenizer, save_tokenizer
from tools.demo_models.pictures.training import Clock, OnStep, TrainConfig

WORK = Path("build/stable_diffusion_demo")


@contextmanager
def display(name: str, clock: Clock) -> Iterator[OnStep]:
    """Shows a training's progress by its clock: a bar on a terminal, a line every 50 steps elsewhere."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("step {task.fields[step]}"),
        TextColumn("loss {task.fields[loss]:.4f}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        speed_estimate_period=600, refresh_per_second=1,
    )  # fmt: skip
    task = progress.add_task(name, total=1.0, step=0, loss=0.0)
    mean = None

    def on_step(step: int, loss: float) -> None:
        nonlocal mean
        mean = loss if mean is None else 0.98 * mean + 0.02 * loss
        progress.update(task, completed=min(1.0, clock.done(step)), step=step, loss=mean)
        if not progress.console.is_terminal and step % 50 == 0:
            print(f"{name}: step {step} loss {mean:.4f} after {clock.spent / 60:.1f} minutes", flush=True)

    with progress:
        yield on_step


def train(config: TrainConfig, model: ModelConfig, out: Path) -> dict:
    """Trains from random weights, or from the checkpoints in `config.work`, and writes the model into `out`.

    `out` has the newest model at each checkpoint. Returns how it was trained, for the card.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    # Kept with the checkpoints: its training breaks ties randomly, so a second one may number words differently.
    kept = config.work / "tokenizer"
    if not kept.exists():
        save_tokenizer(make_tokenizer(model.text_length), kept)
    tokenizer = CLIPTokenizer.from_pretrained(kept)
    vae, unet = build_vae(model).to(device), build_unet(model).to(device)
    text_encoder = build_text_encoder(model, tokenizer).to(device)

    first = Clock(config.vae_steps, config.vae_minutes, config.checkpoint_minutes)
    with display("autoencoder", first) as on_step:
        vae_steps = train_autoencoder(vae, config, first, on_step)
    vae.eval()
    scenes = training_scenes(config)
    latents = training_latents(vae, scenes, config.work / "latents.pt")

    second = Clock(config.steps, config.minutes, config.checkpoint_minutes)

    def save() -> None:
        # The folder is always complete: everything is written to another one and then moved over.
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as made:
            save_pipeline(build_pipeline(vae, unet, text_encoder, tokenizer), Path(made))
            for file in sorted(Path(made).rglob("*")):
                if file.is_file():
                    target = out / file.relative_to(made)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    file.chmod(0o644)
                    file.replace(target)

    with display("denoiser", second) as on_step:
        steps = train_denoiser(unet, text_encoder, tokenizer, (scenes, latents), config, second, on_step, save)
    settings = {name: value for name, value in asdict(config).items() if name != "work"}
    return settings | {
        "vae_steps": vae_steps,
        "steps": steps,
        "vae_wall_minutes": round(first.spent / 60, 1),
        "wall_minutes": round(second.spent / 60, 1),
        "cpu_minutes": round((first.cpu + second.cpu) / 60, 1),
        "device": device.type,
        "cores": os.cpu_count(),
    }


def record(folder: Path, training: dict) -> None:
    """Scores the model in `folder`, and writes evaluation.json, a grid of pictures and the card."""
    recorded = {"evaluation": measured(folder), "training": training}
    (folder / "evaluation.json").write_text(json.dumps(recorded, indent=2) + "\n")
    write_pictures(folder, folder / "pictures.png")
    write_card(folder, recorded, GALLERY)
    show(recorded["evaluation"])


def main(
    out: Annotated[Path, typer.Option(help="the folder to write; its files are replaced")] = MODEL,
    work: Annotated[Path, typer.Option(help="the folder for checkpoints")] = WORK,
    resume: Annotated[bool, typer.Option("--resume", help="continue from the checkpoints in the work folder")] = False,
    minutes: Annotated[float, typer.Option(help="most minutes to train the denoiser")] = TrainConfig.minutes,
    steps: Annotated[int, typer.Option(help="most steps of the denoiser")] = TrainConfig.steps,
    vae_minutes: Annotated[float, typer.Option(help="most minutes to train the autoencoder")] = TrainConfig.vae_minutes,
    vae_steps: Annotated[int, typer.Option(help="most steps of the autoencoder")] = TrainConfig.vae_steps,
    seed: Annotated[int, typer.Option(help="for the pictures and the weights")] = TrainConfig.seed,
) -> None:
    """Trains the demo model, scores it, and writes it in the layout of diffusers."""
    if not resume:
        shutil.rmtree(work, ignore_errors=True)
    config = TrainConfig(
        work=work, minutes=minutes, steps=steps, vae_minutes=vae_minutes, vae_steps=vae_steps, seed=seed
    )
    record(out, train(config, ModelConfig(), out))


if __name__ == "__main__":
    typer.run(main)
