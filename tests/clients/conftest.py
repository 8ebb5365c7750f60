"""A server on localhost that speaks the OpenAI protocol, well or badly, and a way to run the clients against it."""

import asyncio
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

CLIENTS = Path(__file__).parents[2] / "clients"
HIDDEN = ("PODSLICE_API_KEY", "OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


class StandIn:
    """Behaves as the first part of the path says: /steady/v1/completions, /busy/v1/completions ..."""

    ANSWER = "Seven days.\u2028Jours \u2603 \u0085\U0001f600"  # U+2028 and U+0085 end a line for str.splitlines
    FIRST_TOKEN_S, TOKEN_S = 0.04, 0.01

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []  # (path, body) of every POST
        self.running: Counter[str] = Counter()
        self.most_running: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.ports: dict[str, set[int]] = {}  # the clients' own: one for each connection
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        app = web.Application()
        app.router.add_get("/{kind}/v1/models", self.models)
        app.router.add_post("/{kind}/v1/completions", self.complete)
        app.router.add_post("/{kind}/v1/chat/completions", self.complete)
        runner = web.AppRunner(app)
        self.loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self.loop.run_until_complete(site.start())
        self.port = site._server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()

    def url(self, kind: str) -> str:
        return f"http://127.0.0.1:{self.port}/{kind}"

    def sent(self, kind: str) -> list[dict[str, Any]]:
        return [body for path, body in self.bodies if path.startswith(f"/{kind}/")]

    async def models(self, request: web.Request) -> web.Response:
        kind = request.match_info["kind"]
        if kind == "html":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        if kind == "locked" and request.headers.get("Authorization") != "Bearer secret":
            return refuse(401, "no such key")
        names = [] if kind == "empty" else ["tiny", "other"]
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        kind, body = request.match_info["kind"], await request.json()
        self.bodies.append((request.path, body))
        self.calls[kind] += 1
        self.ports.setdefault(kind, set()).add(request.transport.get_extra_info("peername")[1])
        self.running[kind] += 1
        self.most_running[kind] = max(self.most_running[kind], self.running[kind])
        try:
            if kind.startswith("third"):  # every third request is turned away
                kind = "quick" if self.calls[kind] % 3 else "busy"
            return refusal(kind) or await self.stream(kind, request, body)
        finally:
            self.running[request.match_info["kind"]] -= 1

    async def stream(self, kind: str, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        chat, size = "messages" in body, body.get("max_tokens", 16)

        async def send(data: Any, end: str = "\n\n", before: str = "data: ") -> None:
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            wire = (before + text + end).encode()
            step = 29 if kind == "pieces" else len(wire)
            for start in range(0, len(wire), step):
                await response.write(wire[start : start + step])
                await asyncio.sleep(0)

        async def token(text: str, finish: str | None = None) -> None:
            piece = {"delta": {"content": text}} if chat else {"text": text}
            await send({"id": "x", "choices": [{"index": 0, **piece, "finish_reason": finish}], "usage": None})

        if chat:
            await send({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        if kind in ("answer", "pieces"):
            await send(": keep-alive", before="", end="\r\n\r\n")
            for char in self.ANSWER:
                await token(char)
            size = len(self.ANSWER)
        elif kind in ("midway", "named", "broken", "short", "stall"):
            await token("Sev")
            await token("en")
            if kind == "midway":
                await send({"error": {"message": "slice lost:\nhost 2 is gone", "type": "server_error", "code": 500}})
            if kind == "named":
                await send("worker died", before="event: error\ndata: ")
            if kind == "stall":
                await asyncio.sleep(120)
            if kind == "broken":
                request.transport.abort()
            return response
        else:
            steady = kind.startswith("steady")
            size = size // 2 if kind.startswith("early") else size
            await asyncio.sleep(self.FIRST_TOKEN_S if steady else 0)
            for number in range(size):
                await token(f" w{number}", "length" if number + 1 == size and kind != "nousage" else None)
                await asyncio.sleep(self.TOKEN_S if steady and number + 1 < size else 0)
        if kind == "nousage":
            await token("", "stop")
        elif (body.get("stream_options") or {}).get("include_usage"):
            cached = {"prompt_tokens_details": {"cached_tokens": 3}} if kind == "cached" else {}
            usage = {"prompt_tokens": len(body.get("prompt", "")) or 5, "completion_tokens": size, **cached}
            await send({"id": "x", "choices": [], "usage": usage})
        await send("[DONE]")
        return response


def refusal(kind: str) -> web.Response | None:
    match kind:
        case "busy":
            return refuse(503, "all 4 slots are taken", {"Retry-After": "7"})
        case "bad":
            return refuse(400, "the prompt has 9000 tokens.\nThe model takes 4096.")
        case "lost":
            return refuse(404, "no model 'tiny'")
        case "sick":
            return web.Response(status=500, text="Internal Server Error")
        case "detail":
            return web.json_response({"detail": [{"loc": ["body"], "msg": "field required"}]}, status=422)
        case "moved":
            return web.Response(status=307, headers={"Location": "http://elsewhere:1/v1/completions"})
        case "page":
            return web.Response(text="<html>hello</html>", content_type="text/html")
    return None


def refuse(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "x"}}, status=status, headers=headers)


@pytest.fixture(scope="session")
def server() -> Iterator[StandIn]:
    stand_in = StandIn()
    stand_in.thread.start()
    assert stand_in.ready.wait(60)
    yield stand_in
    stand_in.loop.call_soon_threadsafe(stand_in.loop.stop)
    stand_in.thread.join(10)


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
