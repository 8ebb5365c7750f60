"""The model card: a description, measured scores and limits of the model."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from safetensors import safe_open

from tools.demo_models.pictures.scenes import COLORS, PLACES, RELATIONS, SHAPES, combinations, held_out, one_thing

CARD = """\
---
license: apache-2.0
language: en
pipeline_tag: text-to-image
library_name: diffusers
---

# Podslice demo model for pictures

A Stable Diffusion 1.x pipeline made small: a UNet of {unet:.1f} million parameters (channels {unet_channels}), an
autoencoder of {vae:.1f} million and a CLIP-style text encoder of {text:.1f} million, {size:.1f} MB in half precision.
It draws colored shapes, 64 x 64 pixels, and was trained from nothing on pictures that its own scripts draw. It exists
so that Podslice can be run, tested and measured on any machine, without a download and without a licence to accept.

![A grid of pictures of the model](pictures.png)

Row by row: {gallery}. Each is the first that was drawn, none was picked.

## What it draws

One shape, or two of which one stands {relations} the other.

- Shapes: {shapes}.
- Colors, of shapes and backgrounds: {colors}.
- Sizes: small, large, and medium where nothing is said.
- Places of one shape: {places}; near the middle where nothing is said.

Where the prompt names no background, it chooses one. Use 64 x 64 pixels, {steps} steps and guidance {guidance:g}:

```python
from diffusers import StableDiffusionPipeline

pipeline = StableDiffusionPipeline.from_pretrained("apps/stable_diffusion/demo/model")
pipeline("a small yellow star above a green square", num_inference_steps={steps}, guidance_scale={guidance:g}).images[0]
```

## Measured

`python -m tools.demo_models.pictures.evaluate` draws with diffusers ({steps} steps, guidance {guidance:g}) and reads
the pictures by measuring: the nearest color of the palette, and the drawn shape that covers the patch best.

{groups}

"Right number" says that there are as many things as asked for, and "all" that every column of the row is right. Of
two things, one right color is half right.

Held out: {held} of the {combinations} combinations of shape, color and background, and a tenth of the pairs of colored
shapes, are in no training picture. The words themselves all are: the forms of these prompts were trained on.

The reader makes mistakes, too. Of the same scenes it reads {drawn:.1%} all right when they are drawn by the script, and
{autoencoder:.1%} after the autoencoder alone, which is about the most that the model can reach.

Training: the autoencoder {vae_steps} steps of {vae_batch} pictures in {vae_minutes:.0f} minutes, the denoiser and the
text encoder {train_steps} steps of {batch} in {minutes:.0f} minutes, on {device} ({cpu:.0f} minutes of CPU time).
To make it again: `python -m tools.demo_models.pictures.train`, with `--vae-minutes` and `--minutes`: a slower or
busier machine takes fewer steps in that time, and a faster one more.

## What it is not

It knows the words above and nothing else: what it draws for any other prompt means nothing. It cannot count, draws
no more than two things, and mixes up what belongs to which of them. There is no safety
checker, as there is nothing unsafe that it could draw. Its speed says nothing about real models, its scores neither.
"""

FIELDS = {
    "color": "color", "shape": "shape", "background": "background", "size": "size", "count": "right number",
    "place": "place", "relation": "relation", "all": "all",
}  # fmt: skip


def _parameters(folder: Path) -> int:
    """Number of parameters in a folder's weights."""
    count = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "numpy") as weights:
            for name in weights.keys():  # noqa: SIM118  it is not a dict
                count += math.prod(weights.get_slice(name).get_shape())
    return count


def _groups(evaluation: dict) -> str:
    """The scores as a table in Markdown."""
    rows = ["| prompts | cases | " + " | ".join(FIELDS.values()) + " |", "| --- |" + " ---: |" * (1 + len(FIELDS))]
    for group, scores in evaluation["groups"].items():
        marks = (f"{scores[field]:.1%}" if field in scores else "" for field in FIELDS)
        rows.append(f"| {group} | {scores['cases']} | {' | '.join(marks)} |")
    return "\n".join(rows)


def write_card(folder: Path, recorded: dict, gallery: tuple[str, ...]) -> None:
    """Writes `folder`/README.md from what `train` recorded; `gallery` are the prompts of pictures.png."""
    evaluation, training = recorded["evaluation"], recorded["training"]
    unet = json.loads((folder / "unet" / "config.json").read_text())
    sizes = {part: _parameters(folder / part) / 1e6 for part in ("unet", "vae", "text_encoder")}
    every = combinations()
    card = CARD.format(
        unet=sizes["unet"], vae=sizes["vae"], text=sizes["text_encoder"],
        unet_channels=", ".join(map(str, unet["block_out_channels"])),
        size=sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e6,
        gallery="; ".join(gallery), relations=", ".join(RELATIONS[:-1]) + " or " + RELATIONS[-1],
        shapes=", ".join(SHAPES), colors=", ".join(COLORS), places=", ".join(PLACES),
        steps=evaluation["steps"], guidance=evaluation["guidance"], groups=_groups(evaluation),
        held=sum(held_out(one_thing(random.Random(0), *combination)) for combination in every),
        combinations=len(every),
        drawn=evaluation["reader"]["drawn"], autoencoder=evaluation["reader"]["after the autoencoder"],
        vae_steps=training["vae_steps"], vae_batch=training["vae_batch"], vae_minutes=training["vae_wall_minutes"],
        train_steps=training["steps"], batch=training["batch"], minutes=training["wall_minutes"],
        cpu=training["cpu_minutes"],
        device="a GPU" if training["device"] == "cuda" else f"{training['cores']} CPU cores, perhaps busy ones",
    )  # fmt: skip
    (folder / "README.md").write_text(card)
