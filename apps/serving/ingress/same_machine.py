"""Keeps web pages of other sites away from a server without keys that listens on loopback alone.

Everyone on this machine may use such a server, and so may any page in a browser on this machine: a page may POST
without asking (a form, or text/plain, which need no preflight), load a URL as a picture, or be of a name that now leads
to 127.0.0.1 (DNS rebinding). A browser tells who asks in Origin, Sec-Fetch-Site and Host; other clients send no Origin
and the address that they were given, and notice nothing of this.

Which other sites' pages may use an application, with keys or without, a config's `cors_origins` says.
"""

import ipaddress
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from apps.serving.ingress.api_keys import Asgi

Refused = Callable[[dict[str, Any], int, str], Response]
READ = frozenset({b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"content-type"})
"""Headers that tell who asks, beside Host, in ASGI's lower case."""
CONTAINERS = frozenset({"host.docker.internal", "host.containers.internal"})
"""This machine, as its containers call it. Nobody can register such a name."""
ADVICE = "This server has no API keys, so it answers this machine alone: give it keys to use it in another way."


def is_loopback(host: str | None) -> bool:
    """Whether this is an address or a name of this machine that no other one reaches."""
    host = (host or "").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def problem(
    method: str, headers: Iterable[tuple[bytes, bytes]], json_only: bool = True, origins: Collection[str] = ()
) -> tuple[int, str] | None:
    """Why a request may come from a page of another site, with the status to refuse it; None if it does not.

    Args:
        origins: other sites that may ask; `*` is all.
    """
    sent: dict[bytes, str] = {}
    hosts: list[str] = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value.decode("latin-1"))
        elif name in READ:
            sent[name] = value.decode("latin-1")
    if len(hosts) > 1 or not all(map(_leads_here, hosts)):
        return 403, f"Host {hosts[0]!r:.100} is no name of this machine. {ADVICE}"
    origin = sent.get(b"origin")
    if origin is not None:
        if not _is_here(origin, hosts) and not {origin, "*"} & set(origins):
            return 403, f"Origin {origin!r:.100} is another site. {ADVICE}"
    elif sent.get(b"sec-fetch-site") == "cross-site" and not _navigates(method, sent):
        return 403, f"Sec-Fetch-Site: a page of another site asks. {ADVICE}"
    if json_only and sent.get(b"content-type", "").partition(";")[0].strip().lower() == "text/plain":
        return 415, "Content-Type: the body must be JSON, sent as application/json, not as text/plain."
    return None


@lru_cache(maxsize=64)
def _leads_here(host: str) -> bool:
    """Whether a Host is of this machine. No page of another site has an address as its own, whatever its name leads to:
    so any address may be one that is forwarded here."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return is_loopback(name) or name in CONTAINERS
    return True


def _is_here(origin: str, hosts: list[str]) -> bool:
    try:
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and (is_loopback(parts.hostname) or [parts.netloc] == hosts)
    except ValueError:
        return False


def _navigates(method: str, sent: dict[bytes, str]) -> bool:
    """Whether a person follows a link: the answer is shown to them, and not to the page with the link."""
    return method in ("GET", "HEAD") and (sent.get(b"sec-fetch-mode"), sent.get(b"sec-fetch-dest")) == (
        "navigate",
        "document",
    )


class SameMachine:
    """ASGI middleware: answers what a page of another site may have sent with `refused(scope, status, message)`.

    Args:
        json_only: whether no client has a reason to send text/plain.
        origins: other sites that may ask; `*` is all.
    """

    def __init__(self, app: Asgi, refused: Refused, json_only: bool = True, origins: Collection[str] = ()):
        self._app, self._refused, self._json_only, self._origins = app, refused, json_only, origins

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        found = None
        if scope["type"] in ("http", "websocket"):
            found = problem(scope.get("method", "GET"), scope["headers"], self._json_only, self._origins)
        if found is not None:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self._refused(scope, *found)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def with_cors(app: Any, origins: Sequence[str]) -> ASGIApp:
    """The application for pages of these origins too; `*` is all. It answers a browser's preflights, which have no key.

    Credentials of the browser (cookies) are not for it: a page sends its API key itself.
    """
    if not origins:
        return app
    # `expose_headers`: Retry-After, X-Seed and the like can be read by the page.
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"])
