"""HTTP to a service: which applications it has, their answers and their streams."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx

PAST_PROXIES = dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))
"""Addresses that are asked without the environment's proxy, which has another localhost."""
TIMEOUT = httpx.Timeout(60, connect=10, read=600)
"""Seconds. A picture or a long prompt may take minutes until its first byte."""
SOON_S = 15
"""Time limit for the questions of what there is."""
PAGES = {"chat": "/v1/chat/completions", "pictures": "/v1/images/generations", "cell": "/publish"}
"""A page, and the path in an application's schema that it needs."""
OF_A_CELL = re.compile(r"/sax/[^/]+/[^/]+$")
"""Routes of the models in a cell, which are reached through the cell."""


class ServiceProblem(Exception):
    """What went wrong with the service and what to do about it, in one line."""


@dataclass(frozen=True)
class ServedApplication:
    """An application of a service, and the pages that it has the calls for."""

    prefix: str
    client: "Client"
    pages: tuple[str, ...]


class Client:
    """One application's HTTP API.

    Args:
        url: its address, such as http://localhost:8000/pictures.
        key: sent as a bearer token; empty for none.

    Raises:
        ServiceProblem: the address is not one.
    """

    def __init__(self, url: str, key: str = ""):
        self.url = (url if "://" in url else f"http://{url}").strip().rstrip("/")
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise ServiceProblem(f"{url!r} is not a service's address; write it like http://localhost:8000")
        if not (key.isascii() and key.isprintable()):
            raise ServiceProblem("The API key has characters that no HTTP header can carry.")
        self._key = key

    def at(self, prefix: str) -> "Client":
        """The application at this route prefix of the same service."""
        return Client(self.url + prefix.rstrip("/"), self._key)

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """The JSON that a call is answered with. `options` are httpx's. Raises ServiceProblem."""
        async with self._http() as http:
            try:
                answer = await http.request(method, self.url + path, **options)
            except httpx.HTTPError as error:
                raise self._broken(error) from error
            if not answer.is_success:
                raise self._refused(answer)
            try:
                return answer.json()
            except ValueError as error:
                raise self._another() from error

    async def events(self, path: str, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """The data of a POST's server-sent events, until `[DONE]` or the end. Closing the iterator ends the request.

        Raises:
            ServiceProblem: the request was refused, failed midway, or its connection broke.
        """
        async with self._http() as http:
            try:
                async with http.stream("POST", self.url + path, **options) as answer:
                    if not answer.is_success:
                        await answer.aread()
                        raise self._refused(answer)
                    async for line in _lines(answer):
                        if not line.startswith(b"data:"):
                            continue
                        if (data := line.removeprefix(b"data:").strip()) == b"[DONE]":
                            return
                        event = json.loads(data)
                        if event.get("error"):
                            raise ServiceProblem(f"The service failed midway: {message_of(data)}")
                        yield event
            except httpx.HTTPError as error:
                raise self._broken(error) from error

    def _http(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return httpx.AsyncClient(headers=headers, timeout=TIMEOUT, verify=_certificates(), mounts=PAST_PROXIES)

    def _refused(self, answer: httpx.Response) -> ServiceProblem:
        said = message_of(answer.content).rstrip(".")
        if answer.status_code in (401, 403):
            has = "its API key is not accepted" if self._key else "the service wants an API key"
            advice = f" ({has}: pass one with --api-key or PODSLICE_API_KEY)"
        elif answer.status_code in (429, 503):
            advice = f" (the service is full or starting: try again in {answer.headers.get('retry-after', 'a few')} s)"
        else:
            advice = ""
        return ServiceProblem(f"{answer.url} answered {answer.status_code}: {said}{advice}.")

    def _broken(self, error: httpx.HTTPError) -> ServiceProblem:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServiceProblem(f"Cannot reach {self.url}: {reason}. Is the service running? Check --url.")
        if isinstance(error, httpx.TimeoutException):
            return ServiceProblem(f"{self.url} does not answer. It may be starting or overloaded: see its log.")
        return ServiceProblem(f"The connection to {self.url} broke: {reason}. See whether the service still runs.")

    def _another(self) -> ServiceProblem:
        return ServiceProblem(f"{self.url} is not a Podslice service. Check --url.")


async def applications(client: Client) -> tuple[list[ServedApplication], list[str]]:
    """The applications behind an address that have a page, and one sentence on each that does not answer.

    Raises:
        ServiceProblem: there is none.
    """
    found, problems = [], []
    for prefix in await _prefixes(client):
        there = client.at(prefix)
        try:
            schema = await there.ask("GET", "/openapi.json", timeout=SOON_S)
        except ServiceProblem as problem:
            problems.append(str(problem))
            continue
        paths = schema.get("paths", {}) if isinstance(schema, dict) else {}
        if pages := tuple(page for page, path in PAGES.items() if path in paths):
            found.append(ServedApplication(prefix, there, pages))
    if not found:
        raise ServiceProblem(problems[0] if problems else str(client._another()))
    return found, problems


async def _prefixes(client: Client) -> list[str]:
    """The applications' route prefixes, from Serve's proxy; only the address itself where that does not answer."""
    try:
        routes = await client.ask("GET", "/-/routes", timeout=SOON_S)
    except ServiceProblem:
        routes = {}
    known = [route for route in routes if route.startswith("/") and not OF_A_CELL.search(route)]
    return sorted(known) or ["/"]


def message_of(body: bytes) -> str:
    """The sentence in an error's body: {"error": {"message"}}, {"Error"}, {"detail"}, or plain text."""
    try:
        said: Any = json.loads(body)
    except ValueError:
        said = body.decode(errors="replace")
    for name in ("error", "Error", "message", "detail"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    text = " ".join((said if isinstance(said, str) else json.dumps(said)).split())
    return text[:500] or "(no message)"


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Lines that end at \\n alone; httpx's own also end at U+2028, which JSON may contain."""
    rest = b""
    async for chunk in answer.aiter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line


_certificates = cache(httpx.create_ssl_context)
"""Reading them takes 30 ms, once."""
