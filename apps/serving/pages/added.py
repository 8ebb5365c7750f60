"""Adds the pages to an application."""

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.serving.pages.reference import reference

NO_OTHERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
}
"""No page of these needs scripts, or anything from elsewhere."""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
pre { background: #f4f4f4; padding: .8rem; overflow-x: auto; border-radius: .3rem; }
code, pre { font: 14px/1.4 ui-monospace, monospace; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #ddd; }
summary { cursor: pointer; } .verb { font-weight: 600; }
@media (prefers-color-scheme: dark) { body { background: #1b1b1b; color: #ddd; } pre { background: #2a2a2a; }
  td, th { border-color: #444; } a { color: #8ab4f8; } }
"""


class Try(NamedTuple):
    """A command to copy; `{url}` in it is the application's address, `{key}` curl's option for the API key, if any."""

    what: str
    command: str


def add_pages(
    app: FastAPI,
    served: Callable[[Request], str],
    lines: Sequence[Try],
    links: Sequence[str],
    keyed: bool,
    for_browsers: bool = False,
) -> None:
    """Add `/` and `/docs`. The application must have been made without FastAPI's own pages, which load scripts.

    Args:
        served: what is served, in a sentence; asked for each request.
        lines: commands that try it.
        links: paths to look at.
        keyed: whether requests need a key.
        for_browsers: whether only a browser gets the page at `/`, because a dialect answers others there.
    """

    def welcome(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "").rstrip("/")
        url = f"{request.url.scheme}://{request.url.netloc}{root}"
        key = " -H 'Authorization: Bearer YOUR_KEY'" if keyed else ""
        commands = "".join(
            f"<p>{escape(line.what)}</p><pre>{escape(line.command.replace('{url}', url).replace('{key}', key))}</pre>"
            for line in lines
        )
        paths = "".join(f'<li><a href="{escape(root + path)}">{escape(root + path)}</a></li>' for path in links)
        body = f"<h1>{escape(app.title)}</h1><p>{escape(served(request))}</p>{commands}<ul>{paths}</ul>"
        return page(app.title, body)

    app.add_middleware(_Welcome, page=welcome, for_browsers=for_browsers)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        root = escape(request.scope.get("root_path", "").rstrip("/"))
        head = f"<h1>{escape(app.title)}</h1><p>{escape(app.description)} As a schema: "
        head += f'<a href="{root}/openapi.json">{root}/openapi.json</a></p>'
        return page(f"{app.title}: API", head + reference(app.openapi()))


class _Welcome:
    """ASGI middleware: answers `/` with a page."""

    def __init__(self, app: ASGIApp, page: Callable[[Request], HTMLResponse], for_browsers: bool):
        self._app, self._page, self._for_browsers = app, page, for_browsers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            request = Request(scope)
            below = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
            wanted = "text/html" in request.headers.get("accept", "") or not self._for_browsers
            if below in ("", "/") and wanted:
                await self._page(request)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def page(title: str, body: str) -> HTMLResponse:
    """A whole page."""
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(title)}</title>"
    return HTMLResponse(f"<!doctype html>{head}<style>{STYLE}</style>{body}", headers=NO_OTHERS)
