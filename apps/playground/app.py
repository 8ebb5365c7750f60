"""The playground: a tab for each page that an application of the service has the calls for."""

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response

from apps.playground.cell_page import cell_page
from apps.playground.chat_page import chat_page
from apps.playground.client import ServedApplication
from apps.playground.guard import MAX_MIB, Guard
from apps.playground.notes import note
from apps.playground.pictures_page import pictures_page
from apps.serving.ingress.same_machine import SameMachine, is_loopback

KEPT_S = 600, 3600
"""How often files that were uploaded or drawn are looked at, and after how long they are deleted."""
PAGES = {"chat": chat_page, "pictures": pictures_page, "cell": cell_page}
CSS = """
.status .problem {color: #b3261e; font-weight: 600} .map .problem {color: #b3261e}
.tokens {line-height: 2; font-family: monospace} .token {position: relative; padding: 2px 0; cursor: default}
.token .likeliest {display: none; position: absolute; z-index: 10; left: 0; top: 1.6em; width: max-content; margin: 0;
  background: var(--background-fill-primary); border: 1px solid var(--border-color-primary); line-height: 1.4}
.token:hover .likeliest, .token:focus .likeliest {display: table} .likeliest td {padding: 1px 8px}
.likeliest .chosen {font-weight: 700}
.slices {display: flex; flex-wrap: wrap; gap: 12px; margin: 12px 0}
.slice {border: 2px solid gray; border-radius: 8px; padding: 8px; width: 180px; display: flex; flex-direction: column}
.slice.running {border-color: #188038} .slice.starting {border-color: #e37400} .slice.free {border-style: dashed}
.slice .hosts {display: flex; flex-wrap: wrap; gap: 4px; margin-bottom: 6px}
.slice .hosts i {width: 16px; height: 16px; border-radius: 3px; background: #9aa0a6}
.slice.running .hosts i {background: #188038} .slice.starting .hosts i {background: #e37400}
"""


def playground(url: str, applications: Sequence[ServedApplication], problems: Sequence[str] = ()) -> gr.Blocks:
    """The page for these applications. `problems`: sentences on those that do not answer."""
    several = len({application.prefix for application in applications}) > 1
    with gr.Blocks(
        title=f"Podslice playground: {url}", analytics_enabled=False, fill_width=True, delete_cache=KEPT_S
    ) as blocks:
        gr.HTML(f"<b>Podslice playground</b> {note(url, False)}" + "".join(note(problem) for problem in problems))
        with gr.Tabs():
            for application in applications:
                for page in application.pages:
                    with gr.Tab(page.capitalize() + (f" {application.prefix}" if several else "")):
                        PAGES[page](application.client, blocks)
    return blocks


def run(blocks: gr.Blocks, host: str, port: int) -> None:
    """Serves the page until Ctrl-C. Nothing is fetched from elsewhere. Raises OSError if the port is in use.

    On loopback, pages of other sites may not use it: it has the service's key.
    """
    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])
    blocks.queue(default_concurrency_limit=None)
    guards = [Middleware(Guard)]
    if is_loopback(host):
        guards.insert(0, Middleware(SameMachine, refused=_refused, json_only=False))
    look: dict[str, Any] = {"theme": theme, "css": CSS, "footer_links": [], "quiet": True}
    kept: dict[str, Any] = {"max_file_size": MAX_MIB * 2**20, "app_kwargs": {"middleware": guards}}
    blocks.launch(server_name=host, server_port=port, share=False, **look, **kept)


def _refused(scope: Mapping[str, Any], status: int, message: str) -> Response:
    return PlainTextResponse(message, status)
