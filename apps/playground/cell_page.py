"""The page of a cell: its slices, and models to publish, update and unpublish."""

import json
from typing import Any

import gradio as gr

from apps.playground.client import Client, ServiceProblem
from apps.playground.notes import note
from apps.playground.slices import cell_html

REFRESH_S = 2


def cell_page(client: Client, page: gr.Blocks) -> None:
    """Adds the page's components to `page`, which is open."""
    shown = gr.State("")
    with gr.Row():
        with gr.Column(scale=2):
            picture = gr.HTML(elem_classes="map")
        with gr.Column(scale=1, min_width=300):
            name = gr.Textbox(label="Model", placeholder="demo", elem_classes="name")
            path = gr.Textbox(label="Model path, in the registry", value="catalog.local")
            checkpoint = gr.Textbox(label="Checkpoint (None: random weights)", elem_classes="checkpoint")
            replicas = gr.Number(1, label="Replicas", precision=0, minimum=0)
            overrides = gr.Textbox(label="Overrides, as JSON", placeholder='{"max_batch_size": 8}')
            with gr.Row():
                publish = gr.Button("Publish", variant="primary")
                update = gr.Button("Update")
                unpublish = gr.Button("Unpublish", variant="stop")
            status = gr.HTML(elem_classes="status")

    async def look(before: str) -> tuple[Any, Any]:
        """(the map, the same for the next call); unchanged maps are not sent again."""
        try:
            now = cell_html(await client.ask("GET", "/cell"))
        except ServiceProblem as problem:
            now = note(str(problem))
        return (gr.skip(), gr.skip()) if now == before else (now, now)

    async def change(method: str, call: str, said: str, model: str, fields: dict[str, Any]) -> str:
        try:
            if "overrides" in fields:
                fields["overrides"] = _fields(fields["overrides"])
            cell = (await client.ask("GET", "/cell"))["sax_cell"]
            full = model.strip() if "/" in model else f"{cell}/{model.strip()}"
            await client.ask(method, call, json={"model": full} | fields)
        except (ServiceProblem, ValueError) as problem:
            return note(str(problem))
        return note(f"{full} {said}", False)

    async def published(model: str, where: str, weights: str, count: int, changes: str) -> str:
        fields = {"model_path": where, "checkpoint": weights, "replicas": count, "overrides": changes}
        return await change("POST", "/publish", "is published, and loads.", model, fields)

    async def updated(model: str, weights: str, count: int, changes: str) -> str:
        given = {"checkpoint": weights, "overrides": changes}  # empty ones stay as they are
        fields = {field: value for field, value in given.items() if value} | {"replicas": count}
        return await change("PUT", "/update", "is updated.", model, fields)

    async def withdrawn(model: str) -> str:
        return await change("POST", "/unpublish", "is unpublished.", model, {})

    for button, does, fields in (
        (publish, published, [name, path, checkpoint, replicas, overrides]),
        (update, updated, [name, checkpoint, replicas, overrides]),
        (unpublish, withdrawn, [name]),
    ):
        button.click(does, fields, status).then(look, shown, [picture, shown], show_progress="hidden")
    ticks = [gr.Timer(REFRESH_S).tick, page.load]
    gr.on(ticks, look, shown, [picture, shown], show_progress="hidden", concurrency_limit=None)


def _fields(text: str) -> dict[str, Any]:
    """The JSON object in the field of overrides. Raises ValueError."""
    try:
        fields = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"Overrides are not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError('Overrides must be a JSON object such as {"max_batch_size": 8}')
    return fields
