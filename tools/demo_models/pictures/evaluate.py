"""Scores the pictures that a model draws: `python -m tools.demo_models.pictures.evaluate`.

Asks for combinations that no training picture shows (`scenes.held_out`) and reads the pictures by measuring
(`reader`). The model is a function from prompts to pictures, so anything else can be scored the same way.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table

from ray_configs.stable_diffusion import DEMO_MODEL
from tools.demo_models.pictures.autoencoder import tensors
from tools.demo_models.pictures.model import load_pipeline
from tools.demo_models.pictures.reader import Reading, Seen, place, read, relation
from tools.demo_models.pictures.scenes import (
    COLORS,
    PLACES,
    RELATIONS,
    SHAPES,
    Scene,
    caption,
    combinations,
    draw,
    held_out,
    name,
    one_thing,
    two_things,
)

Draw = Callable[[list[str]], np.ndarray]
"""Makes uint8 [prompts, 64, 64, 3] of prompts."""

STEPS, GUIDANCE = 25, 3.0
MODEL = Path(DEMO_MODEL)
GALLERY = (
    "a red circle on a blue background", "a green square on a white background", "a yellow star on a black background",
    "an orange heart on a purple background", "a white ring on a green background", "a large black cross on red",
    "a small blue triangle on a yellow background", "a large purple circle on an orange background",
    "a small yellow star above a green square", "a red heart below a white ring on a blue background",
    "a blue cross to the left of an orange circle on a black background",
    "a white triangle to the right of a red square on a green background",
    "a purple ring above a black heart on a yellow background", "a large green circle left of a small blue square",
    "a yellow triangle under a red circle on a white background", "a black star and an orange square",
    "blue star", "red heart", "green ring on black", "a picture of a purple square",
    "a white circle in the top left on a red background", "an orange star in the bottom right corner on blue",
    "a small red square at the top on a white background", "a yellow cross on the left, purple background",
)  # fmt: skip
"""The prompts of the card's grid of pictures, row by row."""


@dataclass(frozen=True)
class Case:
    """A prompt and what its picture must show. Anything the prompt leaves open is not judged."""

    group: str
    prompt: str
    scene: Scene
    judged: frozenset[str]

    def judge(self, reading: Reading) -> dict[str, float]:
        """The picture's score, from 0 to 1, in each property that is judged. `all` is 1 if every property is right.

        Colors and shapes count for each thing that was asked for, so one of two is half right.
        """
        wanted = self.scene.things
        seen = list(reading.things[: len(wanted)]) + [None] * (len(wanted) - len(reading.things))
        # Match each wanted thing to the seen thing that is most like it.
        seen = max(permutations(seen), key=lambda order: sum(map(_likeness, wanted, order)))
        scores = {"count": float(len(reading.things) == len(wanted))}
        scores["background"] = float(reading.background == self.scene.background)
        for field in ("color", "shape", "size"):
            hits = [one is not None and getattr(one, field) == getattr(want, field) for want, one in zip(wanted, seen)]
            scores[field] = sum(hits) / len(hits)
        whole = None not in seen
        scores["relation"] = float(whole and len(seen) == 2 and relation(*seen) == self.scene.relation)
        scores["place"] = float(whole and place(seen[0]) == (self.scene.place or "middle"))
        scores = {field: score for field, score in scores.items() if field in self.judged}
        return scores | {"all": float(min(scores.values()) == 1)}


def _likeness(wanted, seen: Seen | None) -> int:
    return 0 if seen is None else 2 * (seen.color == wanted.color) + 2 * (seen.shape == wanted.shape) + (
        seen.size == wanted.size
    )  # fmt: skip


def cases(each: int = 60, seed: int = 0) -> list[Case]:
    """`each` cases for each main group and half as many for the others, always the same ones for a seed."""
    rng = random.Random(f"{seed}-evaluation")
    whole = frozenset({"count", "background", "color", "shape", "size"})
    new = [one for one in combinations() if held_out(one_thing(rng, *one))]
    known = [one for one in combinations() if one not in new]
    places = [word for word in PLACES if word != "middle"]

    def asked(group: str, scene: Scene, judged: frozenset[str] = whole) -> Case:
        return Case(group, caption(scene), scene, judged)

    def drawn_from(pool: list[tuple[str, str, str]], count: int) -> list[tuple[str, str, str]]:
        """Draw from the pool as evenly as possible."""
        return [one for _ in range(0, count, len(pool)) for one in rng.sample(pool, len(pool))][:count]

    found = [asked("one thing, held out", one_thing(rng, *one)) for one in drawn_from(new, each)]
    found += [asked("one thing, trained on", one_thing(rng, *one)) for one in drawn_from(known, each)]
    for number, one in enumerate(drawn_from(new, each // 2)):
        scene = one_thing(rng, *one, rng.choice(("small", "medium")), places[number % len(places)])
        found.append(asked("one thing at a place, held out", scene, whole | {"place"}))
    for one in drawn_from(known, each // 2):
        scene = one_thing(rng, *one, "medium")
        found.append(
            Case("short, as `blue star`", name(scene.things[0]), scene, frozenset({"count", "color", "shape"}))
        )
    while len(found) < 4 * each:
        background = rng.choice(list(COLORS))
        others = [color for color in COLORS if color != background]
        kinds = tuple((rng.choice(SHAPES), rng.choice(others)) for _ in range(2))
        scene = two_things(rng, kinds, background, rng.choice(RELATIONS))
        if kinds[0] != kinds[1] and held_out(scene):
            found.append(asked("two things, held out", scene, whole | {"relation"}))
    return found


@dataclass(frozen=True)
class Report:
    """Every case with its scores."""

    results: tuple[tuple[Case, dict[str, float]], ...]

    def summary(self) -> dict[str, dict[str, float]]:
        """By group: the number of cases, and the mean score of each property that is judged."""
        groups: dict[str, dict[str, list[float]]] = {}
        for case, scores in self.results:
            for field, score in scores.items():
                groups.setdefault(case.group, {}).setdefault(field, []).append(score)
        return {
            group: {"cases": len(fields["all"])} | {name: round(float(np.mean(s)), 4) for name, s in fields.items()}
            for group, fields in groups.items()
        }


def evaluate(drawer: Draw, asked: Sequence[Case], batch: int = 28) -> Report:
    """Scores the pictures that `drawer` makes of the cases' prompts."""
    results = []
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        pictures = drawer([case.prompt for case in part])
        results += [(case, case.judge(read(picture))) for case, picture in zip(part, pictures, strict=True)]
    return Report(tuple(results))


def pipeline_drawer(folder: Path, steps: int = STEPS, guidance: float = GUIDANCE, seed: int = 0) -> Draw:
    """Draws with diffusers, on a GPU if torch has one; each picture has its own seed."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pipeline = load_pipeline(folder, device)
    drawn = 0

    def drawer(prompts: list[str]) -> np.ndarray:
        nonlocal drawn
        seeds = [torch.Generator().manual_seed(seed * 100_000 + drawn + n) for n in range(len(prompts))]
        drawn += len(prompts)
        with torch.inference_mode():
            images = pipeline(
                prompts, num_inference_steps=steps, guidance_scale=guidance, generator=seeds, output_type="np"
            ).images
        return (images * 255).round().astype(np.uint8)

    return drawer


def reader_limits(folder: Path, asked: Sequence[Case]) -> dict[str, float]:
    """The share of the cases read as all right when drawn as asked for, and after the autoencoder alone."""
    pipeline = load_pipeline(folder)
    drawn = [draw(case.scene) for case in asked]
    with torch.inference_mode():
        latents = pipeline.vae.encode(tensors(drawn, pipeline.device)).latent_dist.mean
        made = ((pipeline.vae.decode(latents).sample.clamp(-1, 1) + 1) * 127.5).round().byte()
    kinds = {"drawn": drawn, "after the autoencoder": list(made.permute(0, 2, 3, 1).cpu().numpy())}
    return {
        kind: round(float(np.mean([case.judge(read(one))["all"] for case, one in zip(asked, pictures)])), 4)
        for kind, pictures in kinds.items()
    }


def measured(folder: Path, each: int = 60, steps: int = STEPS, guidance: float = GUIDANCE) -> dict:
    """The scores that the card reports."""
    asked = cases(each)
    return {
        "steps": steps,
        "guidance": guidance,
        "groups": evaluate(pipeline_drawer(folder, steps, guidance), asked).summary(),
        "reader": reader_limits(folder, asked),
    }


def write_pictures(folder: Path, path: Path, columns: int = 8) -> None:
    """Draws the gallery and writes it as one picture."""
    pictures = pipeline_drawer(folder)(list(GALLERY))
    rows = [np.concatenate(list(pictures[start : start + columns]), 1) for start in range(0, len(pictures), columns)]
    Image.fromarray(np.concatenate(rows)).save(path, optimize=True)


def show(evaluation: dict) -> None:
    """Prints the evaluation as a table; outside a terminal it is as wide as needed."""
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(_table(evaluation))


def _table(evaluation: dict) -> Table:
    fields = ("color", "shape", "background", "size", "count", "place", "relation", "all")
    shown = Table(title=f"{evaluation['steps']} steps, guidance {evaluation['guidance']:g}")
    shown.add_column("prompts")
    for column in ("cases", *fields):
        shown.add_column(column, justify="right")
    for group, scores in evaluation["groups"].items():
        marks = [f"{scores[field]:.1%}" if field in scores else "" for field in fields]
        shown.add_row(group, str(scores["cases"]), *marks)
    for kind, share in evaluation["reader"].items():
        shown.add_row(f"(all of them, {kind})", *[""] * len(fields), f"{share:.1%}")
    return shown


def main(
    model: Annotated[Path, typer.Option(help="a folder of diffusers")] = MODEL,
    each: Annotated[int, typer.Option(help="cases for each kind of prompt, about")] = 60,
    steps: Annotated[int, typer.Option(help="of denoising")] = STEPS,
    guidance: Annotated[
        float, typer.Option(help="how strongly the prompt is followed; 1 is without guidance")
    ] = GUIDANCE,
    out: Annotated[Path | None, typer.Option(help="a JSON file to write besides")] = None,
) -> None:
    """Scores the model and prints a table."""
    evaluation = measured(model, each, steps, guidance)
    show(evaluation)
    if out:
        out.write_text(json.dumps(evaluation, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
