"""The page of a language model, or of the models in a cell: a chat."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import gradio as gr

from apps.playground import conversation
from apps.playground.client import Client, ServiceProblem
from apps.playground.notes import note

REDRAW_S = 0.05
"""Between two drawings of an answer that streams: a browser need not draw each of a thousand tokens a second."""
LIKELIEST = 5
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed")
UNSET = {"max_tokens": 0, "seed": -1}
"""Values that stand for the service's default: a number in Gradio cannot be empty."""


def chat_page(client: Client, page: gr.Blocks) -> None:
    """Adds the page's components to `page`, which is open."""
    messages = gr.State([])
    with gr.Row():
        with gr.Column(scale=3):
            chat = gr.Chatbot(height=320, show_label=False, buttons=["copy"], group_consecutive_messages=False)
            status = gr.HTML(elem_classes="status")
            tokens = gr.HTML(elem_classes="probabilities")
            # One line, which grows: in a box of several, Enter breaks the line, and only Shift+Enter sends.
            text = gr.Textbox(label="Message", lines=1, max_lines=10, elem_classes="message")
            picture = gr.Image(
                label="Picture, for a model that reads them",
                type="filepath",
                sources=["upload", "clipboard"],
                height=140,
                elem_classes="shown",
            )
            with gr.Row():
                send = gr.Button("Send", variant="primary")
                stop = gr.Button("Stop")
                clear = gr.Button("New chat")
        with gr.Column(scale=1, min_width=280):
            model = gr.Dropdown([], label="Model")
            settings = _settings()

    async def answer(
        typed: str,
        seen: str | None,
        past: list[conversation.Message],
        name: str | None,
        system: str,
        effort: str,
        *more: Any,
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Sends what was typed, and the picture. Yields (messages, chat, text, picture, status, tokens)."""
        with_tokens, given_tools, tool_choice, *values = more
        if not typed.strip():
            yield past, gr.skip(), gr.skip(), gr.skip(), note("Write a message first."), gr.skip()
            return
        now = conversation.with_text(past, typed, seen)
        if conversation.unanswered(now):  # of several calls, one has a result
            field = gr.Textbox(value="", label=conversation.hint(now))
            yield now, conversation.shown(now), field, gr.skip(), "", ""
            return
        streamed = conversation.StreamedAnswer(time.monotonic())
        waiting = note("Waiting for the first token", False)
        yield past, conversation.shown(now), gr.Textbox(value=""), None, waiting, ""
        try:
            uses = (given_tools or "", tool_choice, effort, LIKELIEST if with_tokens else 0)
            body = conversation.request(name, system, now, _set(values), *uses)
            drawn_at = 0.0
            async for event in client.events("/v1/chat/completions", json=body):
                streamed.take(event, time.monotonic())
                if time.monotonic() - drawn_at >= REDRAW_S:
                    drawn_at = time.monotonic()
                    parts = conversation.shown(now, streamed)
                    yield past, parts, gr.skip(), gr.skip(), note(streamed.speed(), False), gr.skip()
        except (ServiceProblem, ValueError) as problem:
            yield past, conversation.shown(past), gr.Textbox(value=typed), seen, note(str(problem)), ""
            return
        now = [*now, streamed.message()]
        listed = conversation.tokens_html(streamed.tokens)
        field = gr.Textbox(label=conversation.hint(now))
        yield now, conversation.shown(now), field, gr.skip(), note(streamed.speed(), False), listed

    async def models(chosen: str | None) -> gr.Dropdown:
        return await _models(client, chosen)

    fields = [text, picture, messages, model, *settings]
    outputs = [messages, chat, text, picture, status, tokens]
    running = gr.on([send.click, text.submit], answer, fields, outputs, show_progress="hidden", concurrency_limit=None)
    stop.click(None, cancels=[running])
    gr.on([clear.click, chat.clear], begin, None, outputs, cancels=[running])
    # A cell's models come and go: the list is read again every few seconds.
    gr.on([gr.Timer(5).tick, page.load], models, model, model, show_progress="hidden")


def begin() -> tuple[Any, ...]:
    """A new chat, as `answer` yields one."""
    return [], [], gr.Textbox(value="", label="Message"), None, "", ""


async def _models(client: Client, chosen: str | None) -> gr.Dropdown:
    """The models that are served now; the chosen one stays chosen."""
    try:
        names = [card["id"] for card in (await client.ask("GET", "/v1/models"))["data"]]
    except ServiceProblem as problem:
        return gr.Dropdown(info=str(problem))
    there = chosen if chosen in names else next(iter(names), None)
    return gr.Dropdown(choices=names, value=there, info=None if names else "No model is published yet.")


def _settings() -> list[gr.components.Component]:
    """Components for what is sent with each message, in the order in which `answer` takes them."""
    instructions = gr.Textbox(label="System prompt", lines=2)
    levels = [("the model's default", ""), "none", "low", "medium", "high"]
    thinking = gr.Dropdown(levels, label="Thinking")
    probabilities = gr.Checkbox(label="Token probabilities")
    with gr.Accordion("Sampling", open=True):
        sampling = _sampling()
    with gr.Accordion("Tools", open=False):
        choice = gr.Dropdown(["auto", "required", "none"], label="Tool choice", allow_custom_value=True)
        tools = gr.Code(label="Tools, as JSON", language="json", elem_classes="tools")
        example = gr.Button("Example: a weather tool", size="sm")
    example.click(lambda: conversation.WEATHER, None, tools)
    return [instructions, thinking, probabilities, tools, choice, *sampling]


def _sampling() -> list[gr.components.Component]:
    """A component for each of SAMPLING."""
    return [
        gr.Slider(0, 2, 0.7, step=0.05, label="Temperature"),
        gr.Slider(0.05, 1, 1, step=0.05, label="Top p"),
        gr.Number(0, label="Top k (0: all)", precision=0, minimum=0),
        gr.Slider(0, 1, 0, step=0.01, label="Min p"),
        gr.Slider(0.5, 2, 1, step=0.05, label="Repetition penalty"),
        gr.Number(0, label="Max tokens (0: as the context allows)", precision=0, minimum=0),
        gr.Number(-1, label="Seed (-1: drawn)", precision=0, minimum=-1),
    ]


def _set(values: Sequence[float]) -> dict[str, float]:
    return {name: value for name, value in zip(SAMPLING, values) if value != UNSET.get(name)}
