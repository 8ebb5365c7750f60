"""The page of Stable Diffusion: pictures with previews and seeds, and image to image."""

import io
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr
from PIL import Image

from apps.playground.client import Client, ServiceProblem
from apps.playground.drawing import Drawing, call, schedulers
from apps.playground.notes import note

FIELDS = ("prompt", "negative_prompt", "size", "seed", "num_inference_steps", "guidance_scale", "scheduler")
UNSET = {"seed": -1, "num_inference_steps": 0, "guidance_scale": -1}
"""Values that stand for the model's default: a number in Gradio cannot be empty."""


def pictures_page(client: Client, page: gr.Blocks) -> None:
    """Adds the page's components to `page`, which is open."""
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            prompt = gr.Textbox(label="Prompt", lines=2, elem_classes="prompt")
            with gr.Row():
                draw = gr.Button("Draw", variant="primary")
                stop = gr.Button("Stop")
            negative = gr.Textbox(label="Negative prompt")
            with gr.Row():
                number = gr.Slider(1, 9, 4, step=1, label="Pictures")
                previews = gr.Slider(0, 3, 3, step=1, label="Previews of each")
            with gr.Row():
                seed = gr.Number(-1, label="Seed (-1: drawn)", precision=0, minimum=-1)
                size = gr.Textbox(label="Size (empty: the model's first)", placeholder="512x512")
            with gr.Accordion("Steps, guidance, scheduler", open=False):
                steps = gr.Number(0, label="Steps (0: the model's default)", precision=0, minimum=0)
                guidance = gr.Number(-1, label="Guidance scale (-1: the model's default)", minimum=-1)
                scheduler = gr.Dropdown([("the model's default", "")], label="Scheduler")
            with gr.Accordion("Image to image", open=False):
                image = gr.Image(
                    label="Begin with", type="pil", height=200, elem_classes="begin", sources=["upload", "clipboard"]
                )
                strength = gr.Slider(0.05, 1, 0.75, step=0.05, label="Strength: share of the steps that are run")
        with gr.Column(scale=2):
            status = gr.HTML(elem_classes="status")
            gallery = gr.Gallery(
                columns=3, height=560, label="Pictures", interactive=False, format="png", elem_classes="pictures"
            )
            again = gr.Button("Begin image to image with the selected picture", size="sm")
    selected = gr.State(0)

    async def drawn(
        count: int, shown_early: int, start: Image.Image | None, share: float, *values: Any
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Yields (gallery, status)."""
        drawing = Drawing(count)
        fields = {name: value for name, value in zip(FIELDS, values) if value != UNSET.get(name)}
        path, options = call(fields, count, shown_early, _png(start) if start else None, share)
        yield [], note("Waiting for the first step", False)
        try:
            async for event in client.events(path, **options):
                changed = drawing.take(event)
                pictures = [(_opened(png), caption) for png, caption in drawing.gallery()] if changed else gr.skip()
                yield pictures, note(drawing.progress(), False)
        except ServiceProblem as problem:
            yield gr.skip(), note(str(problem))

    async def known() -> tuple[Any, str]:
        try:
            listed = schedulers(await client.ask("GET", "/sdapi/v1/samplers"))
        except ServiceProblem as problem:
            return gr.skip(), note(str(problem))
        return gr.Dropdown(choices=[("the model's default", ""), *listed]), ""

    values = [prompt, negative, size, seed, steps, guidance, scheduler]
    fields = [number, previews, image, strength, *values]
    asked = [draw.click, prompt.submit]
    running = gr.on(asked, drawn, fields, [gallery, status], show_progress="hidden", concurrency_limit=None)
    stop.click(None, cancels=[running])
    gallery.select(select, None, selected)
    again.click(picked, [gallery, selected], image)
    page.load(known, None, [scheduler, status], show_progress="hidden")


def select(event: gr.SelectData) -> int:
    """The number of the picture that was clicked."""
    return event.index


def picked(pictures: list[tuple[Image.Image, str]] | None, index: int) -> Any:
    """The selected picture, if there is one, to begin image to image with."""
    return pictures[index][0] if pictures and index < len(pictures) else gr.skip()


def _png(image: Image.Image) -> bytes:
    """Without transparency, which the service would take for a mask."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "PNG")
    return file.getvalue()


def _opened(png: bytes) -> Image.Image:
    """With its metadata, which holds the parameters: Gradio keeps it."""
    image = Image.open(io.BytesIO(png))
    image.load()
    return image
