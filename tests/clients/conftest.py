"""A server on localhost that speaks the OpenAI protocol, well or badly, and a way to run the clients against it."""

import asyncio
import importlib
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

from tests.http_servers import served

CLIENTS = Path(__file__).parents[2] / "clients"
HIDDEN = ("PODSLICE_API_KEY", "OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


class Completions:
    """Behaves as the first part of the path says: /steady/v1/completions, /busy/v1/completions ..."""

    ANSWER = "Seven days.\u2028Jours \u2603 \u0085\U0001f600"  # U+2028 and U+0085 end a line for str.splitlines
    FIRST_TOKEN_S, TOKEN_S = 0.04, 0.01

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []  # (path, body) of every POST
        self.running: Counter[str] = Counter()
        self.most_running: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.ports: dict[str, set[int]] = {}  # the clients' own: one for each connection
        self.base_url = ""
        self.app = Starlette()
        self.app.add_route("/{kind}/v1/models", self.models)
        for path in ("completions", "chat/completions"):
            self.app.add_route(f"/{{kind}}/v1/{path}", self.complete, methods=["POST"])

    def url(self, kind: str) -> str:
        return f"{self.base_url}/{kind}"

    def sent(self, kind: str) -> list[dict[str, Any]]:
        return [body for path, body in self.bodies if path.startswith(f"/{kind}/")]

    async def models(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind == "html":
            return HTMLResponse("<html>hello</html>")
        if kind == "locked" and request.headers.get("Authorization") != "Bearer secret":
            return refuse(401, "no such key")
        names = [] if kind == "empty" else ["tiny", "other"]
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def complete(self, request: Request) -> Response:
        kind, body = request.path_params["kind"], await request.json()
        self.bodies.append((request.url.path, body))
        self.calls[kind] += 1
        self.ports.setdefault(kind, set()).add(request.client.port)
        acts = kind
        if kind.startswith("third"):  # every third request is turned away
            acts = "quick" if self.calls[kind] % 3 else "busy"
        return refusal(acts) or StreamingResponse(
            self.stream(kind, acts, request, body), media_type="text/event-stream"
        )

    async def stream(self, kind: str, acts: str, request: Request, body: dict[str, Any]) -> AsyncIterator[bytes]:
        self.running[kind] += 1
        self.most_running[kind] = max(self.most_running[kind], self.running[kind])
        try:
            async for event in self.events(acts, request, body):
                wire = event.encode()
                step = 29 if acts == "pieces" else len(wire)
                for start in range(0, len(wire), step):
                    yield wire[start : start + step]
                    await asyncio.sleep(0)
        finally:
            self.running[kind] -= 1

    async def events(self, kind: str, request: Request, body: dict[str, Any]) -> AsyncIterator[str]:
        chat, size = "messages" in body, body.get("max_tokens", 16)

        def event(data: Any) -> str:
            return f"data: {data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}\n\n"

        def token(text: str, finish: str | None = None) -> str:
            piece = {"delta": {"content": text}} if chat else {"text": text}
            return event({"id": "x", "choices": [{"index": 0, **piece, "finish_reason": finish}], "usage": None})

        if chat:
            yield event({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        if kind in ("answer", "pieces"):
            yield ": keep-alive\r\n\r\n"
            for char in self.ANSWER:
                yield token(char)
            size = len(self.ANSWER)
        elif kind in ("midway", "named", "broken", "short", "stall"):
            yield token("Sev")
            yield token("en")
            if kind == "midway":
                yield event({"error": {"message": "slice lost:\nhost 2 is gone", "type": "server_error", "code": 500}})
            if kind == "named":
                yield "event: error\ndata: worker died\n\n"
            while kind == "stall" and not await request.is_disconnected():
                await asyncio.sleep(0.05)
            if kind == "broken":
                raise ConnectionAbortedError("on purpose")
            return
        else:
            steady = kind.startswith("steady")
            size = size // 2 if kind.startswith("early") else size
            await asyncio.sleep(self.FIRST_TOKEN_S if steady else 0)
            for number in range(size):
                yield token(f" w{number}", "length" if number + 1 == size and kind != "nousage" else None)
                await asyncio.sleep(self.TOKEN_S if steady and number + 1 < size else 0)
        if kind == "nousage":
            yield token("", "stop")
        elif (body.get("stream_options") or {}).get("include_usage"):
            cached = {"prompt_tokens_details": {"cached_tokens": 3}} if kind == "cached" else {}
            usage = {"prompt_tokens": len(body.get("prompt", "")) or 5, "completion_tokens": size, **cached}
            yield event({"id": "x", "choices": [], "usage": usage})
        yield event("[DONE]")


def refusal(kind: str) -> Response | None:
    match kind:
        case "busy":
            return refuse(503, "all 4 slots are taken", {"Retry-After": "7"})
        case "bad":
            return refuse(400, "the prompt has 9000 tokens.\nThe model takes 4096.")
        case "lost":
            return refuse(404, "no model 'tiny'")
        case "sick":
            return PlainTextResponse("Internal Server Error", 500)
        case "detail":
            return JSONResponse({"detail": [{"loc": ["body"], "msg": "field required"}]}, 422)
        case "moved":
            return Response(status_code=307, headers={"Location": "http://elsewhere:1/v1/completions"})
        case "page":
            return HTMLResponse("<html>hello</html>")
    return None


def refuse(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": message, "type": "x"}}, status, headers)


@pytest.fixture(scope="session")
def server() -> Iterator[Completions]:
    completions = Completions()
    with served(completions.app) as completions.base_url:
        yield completions


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a client program with pipes; ends it after the test whatever happens."""
    started: list[subprocess.Popen[str]] = []

    def start_client(program: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [sys.executable, str(CLIENTS / program), *arguments],
            **pipes | {key: value for key, value in options.items() if key != "env"},
            env=environment | options.get("env", {}),
            encoding="utf-8",
        )
        started.append(process)
        return process

    yield start_client
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def run(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., tuple[int, str, str]]:
    """Runs a client program to its end: (exit code, stdout, stderr)."""

    def run_client(program: str, *arguments: str, stdin: str | None = None, **options: Any) -> tuple[int, str, str]:
        pipe = {} if stdin is None else {"stdin": subprocess.PIPE}
        process = start(program, *arguments, **pipe, **options)
        out, err = process.communicate(stdin, timeout=120)
        return process.returncode, out, err

    return run_client


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """As `run`, but in this process: for the many short ways to fail, where starting Python would take the time."""
    monkeypatch.syspath_prepend(str(CLIENTS))
    for name in HIDDEN:
        monkeypatch.delenv(name, raising=False)

    def call_main(program: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        try:
            code = importlib.import_module(program.removesuffix(".py")).main()
        except SystemExit as leaving:  # argparse's
            code = leaving.code
        return code, *capsys.readouterr()

    return call_main
