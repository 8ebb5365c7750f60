"""Files and batches over HTTP, with a stand-in for the model that counts requests and answers when the test lets it."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from apps.llm.batch_api.files.storage import Storage
from apps.llm.batch_api.http import batches_router
from apps.llm.batch_api.records import BatchStore, Limits
from apps.llm.batch_api.runner import Runner
from apps.serving.ingress.api_keys import principals
from apps.serving.ingress.application import answer_errors
from tests.http_servers import served

MODEL = "stand-in"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
LIMITS = Limits(file_bytes=2**20, lines=1000)

Answer = Callable[[dict[str, Any]], Awaitable[Response]]


@dataclass
class StandIn:
    """A model with four slots. It answers 400 to prompts that begin with `bad`."""

    name: str = MODEL
    max_batch_size: int = 4
    asked: Counter[str] = field(default_factory=Counter)
    """Number of requests for each prompt."""
    may_answer: asyncio.Semaphore | None = None
    """Acquired for each answer; None if answers need no permission."""
    running: int = 0
    most: int = 0
    """Highest number of concurrent requests so far."""
    refusals: int = 0
    """Number of further requests to refuse with a full queue."""

    def stats(self) -> Any:
        return SimpleNamespace(running=self.running, waiting=0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads(await Request(scope, receive).body())
        await (await self._answer(body))(scope, receive, send)

    async def _answer(self, body: dict[str, Any]) -> Response:
        prompt = str(body["prompt"])
        if self.refusals:
            self.refusals -= 1
            return JSONResponse({"error": {"message": "busy"}}, 429, {"Retry-After": "0.01"})
        self.asked[prompt] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.may_answer is not None:
                await self.may_answer.acquire()
            else:
                await asyncio.sleep(0)
        finally:
            self.running -= 1
        if prompt.startswith("bad"):
            return JSONResponse({"error": {"message": "this is bad", "param": "prompt"}}, 400)
        return JSONResponse({"object": "text_completion", "choices": [{"text": f"answer to {prompt}"}]})


def app_of(kept: BatchStore | None, model: StandIn, keys: tuple[str, ...] = ()) -> FastAPI:
    runner = Runner(kept) if kept else None
    app = FastAPI(lifespan=(lambda _: runner.running(model, model)) if runner else None)
    app.include_router(batches_router(kept, model.name, ENDPOINTS, runner.wake if runner else lambda: None))
    answer_errors(app, principals(keys))
    return app


def kept_in(folder: Path | str, limits: Limits = LIMITS) -> BatchStore:
    return BatchStore(Storage(str(folder)), limits)


@contextmanager
def batch_server(
    folder: Path | str, model: StandIn | None = None, keys: tuple[str, ...] = (), limits: Limits = LIMITS
) -> Iterator[openai.OpenAI]:
    """A client of a replica that uses this storage."""
    with served(app_of(kept_in(folder, limits), model or StandIn(), keys), lifespan="on") as url:
        yield client_of(url, keys[0].partition("=")[2] if keys else "none")


def client_of(url: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


def lines(*prompts: str, url: str = "/v1/completions", **body: Any) -> bytes:
    """An input file: line i has the custom_id `line-i`."""
    requests = (
        {"custom_id": f"line-{i}", "method": "POST", "url": url, "body": {"prompt": prompt, **body}}
        for i, prompt in enumerate(prompts)
    )
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


def begin(client: openai.OpenAI, content: bytes, endpoint: str = "/v1/completions", window: str = "24h") -> Any:
    """Uploads the file and creates a batch of it."""
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=window)  # type: ignore


def ended(client: openai.OpenAI, batch: Any, timeout_s: float = 240) -> Any:
    """Waits for the batch to end; returns it."""
    return until(client, batch, lambda now: now.status in ("completed", "failed", "expired", "cancelled"), timeout_s)


def until(client: openai.OpenAI, batch: Any, condition: Callable[[Any], bool], timeout_s: float = 240) -> Any:
    deadline = time.monotonic() + timeout_s
    while not condition(now := client.batches.retrieve(batch.id)):
        assert time.monotonic() < deadline, now
        time.sleep(0.05)
    return now


def answers(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of an output or error file."""
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()] if file_id else []
