"""Speaks HTTP with vLLM, in a thread of its own: the streams of answers, health and metrics."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from collections.abc import Sequence as Ids
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp

from apps.llm.api import LATE, Sampling, Sink, TokenOutput, TokenRequest
from apps.llm.engines.vllm import metrics, tokens
from apps.serving import progress

log = logging.getLogger("podslice")

LOOK_S = 0.5
"""Time between two looks at whether it answers, and at its health and metrics."""
ANSWER_S = 10.0
"""What takes longer than this to say that it is healthy is not."""
FIRST_S = 1800
"""For the first answer, before which it may compile."""
FIRST_TOKENS = 12
"""Of its prompt. vLLM 0.32 on a CPU with AMX died of one of 4 tokens, where it was the very first."""
DATA = b"data: "
MOST_LINE = 32 << 20
"""Bytes of one event. An answer's first repeats its prompt's tokens."""

Body = Callable[[TokenRequest], Mapping[str, Any]]


class Ready(NamedTuple):
    """What vLLM says of itself once it is ready."""

    max_model_len: int
    cache: metrics.CacheSize


class OpenRequest:
    """One that vLLM has."""

    def __init__(self, request: TokenRequest, sink: Sink):
        self.request, self.sink = request, sink
        self.begun = False  # has got a token
        self.ended = False
        self.task: asyncio.Task[None] | None = None

    def send(self, output: TokenOutput) -> None:
        """Hand an output on, unless the last one has been."""
        if self.ended:
            return
        self.begun = self.begun or bool(output.token_ids)
        self.ended = output.finish_reason is not None
        self.sink([output])


class VllmClient:
    """vLLM's HTTP, over a Unix socket, or TCP with a key."""

    def __init__(self, unix: str | None = None, url: str = "http://vllm", key: str | None = None):
        self._unix, self._url = unix, url
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._open: dict[int, OpenRequest] = {}
        self._heard = time.monotonic()  # when a token came last, or the first of the open requests
        self.samples: Mapping[str, float] = {}
        """Of its metrics, at the last look."""
        self.unhealthy = ""
        """Why it is not healthy, at the last look."""
        self._loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None
        self._looking: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="podslice-vllm", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- its start ----------------------------------------------------------------------------------------------

    def wait_ready(self, ended: Callable[[], str | None]) -> Ready:
        """Wait until it answers. `ended` says how it has ended, if it has; that is raised as RuntimeError."""
        began = told = time.monotonic()
        progress.tell({"stage": "vLLM loads the model"})
        while not self._call(self._answers()):
            if (how := ended()) is not None:
                raise RuntimeError(how)
            if time.monotonic() - told > progress.PERIOD_S:
                told = time.monotonic()
                progress.tell({"waiting": f"vLLM, {told - began:.0f} s so far"})
            time.sleep(LOOK_S)
        models = json.loads(self._call(self._get("/v1/models")))
        ready = Ready(models["data"][0]["max_model_len"], metrics.cache_size(self._call(self._get("/metrics"))))
        log.info("vLLM answers after %.0f s: %s", time.monotonic() - began, ready)
        return ready

    def try_requests(self, ends: tuple[int, ...]) -> bool:
        """Have it answer requests, so that the first client's finds all compiled. Whether it takes seeds.

        Raises:
            RuntimeError: it does not answer.
        """
        began = time.monotonic()
        for seeded in (True, False):
            prompt, sampling = (1,) * FIRST_TOKENS, Sampling(seed=0, ignore_eos=True)
            request = TokenRequest(id=-1, prompt_ids=prompt, limit=FIRST_TOKENS + 2, sampling=sampling)
            got: list[TokenOutput] = []
            each = OpenRequest(request, got.extend)
            body = tokens.completion(request, ends, seeded)
            self._call(asyncio.wait_for(self._answer(each, body), FIRST_S))
            if got[-1].finish_reason == "length":
                log.info("vLLM's first answer took %.1f s", time.monotonic() - began)
                return seeded
            log.warning("vLLM refuses a request%s: %s", " with a seed" if seeded else "", got[-1].error)
        raise RuntimeError(f"vLLM does not answer: {got[-1].error}")

    async def _answers(self) -> bool:
        if self._session is None:
            connector = aiohttp.UnixConnector(self._unix, limit=0) if self._unix else aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                self._url,
                connector=connector,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),
                read_bufsize=MOST_LINE // 2,  # the least that a line of this length passes through
            )
        try:
            await self._get("/health")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        self._looking = self._looking or asyncio.create_task(self._look_on())
        return True

    async def _get(self, path: str) -> str:
        assert self._session is not None
        async with asyncio.timeout(ANSWER_S), self._session.get(path) as answer:
            answer.raise_for_status()
            return await answer.text()

    async def _look_on(self) -> None:
        while True:
            try:
                await self._get("/health")
                self.samples = metrics.samples(await self._get("/metrics"))
                self.unhealthy = ""
            except Exception as error:
                self.unhealthy = str(error) or type(error).__name__
            await asyncio.sleep(LOOK_S)

    # -- requests -----------------------------------------------------------------------------------------------

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def running(self) -> int:
        """Open requests that have got a token."""
        return sum(each.begun for each in list(self._open.values()))

    @property
    def silent_s(self) -> float:
        """How long open requests have got nothing; 0 without any."""
        return time.monotonic() - self._heard if self._open else 0.0

    def begin(self, requests: Ids[TokenRequest], sink: Sink, body: Body) -> None:
        """Send requests; their outputs go to the sink, from this client's thread."""
        self._loop.call_soon_threadsafe(self._begin, [(request, body(request)) for request in requests], sink)

    def _begin(self, requests: Ids[tuple[TokenRequest, Mapping[str, Any]]], sink: Sink) -> None:
        if not self._open:
            self._heard = time.monotonic()
        for request, body in requests:
            each = self._open[request.id] = OpenRequest(request, sink)
            each.task = self._loop.create_task(self._follow(each, body))

    async def _follow(self, each: OpenRequest, body: Mapping[str, Any]) -> None:
        """One request from its beginning to its last output."""
        request = each.request
        try:
            async with asyncio.timeout(request.deadline_s):
                await (self._answer(each, body) if request.suffix is None else self._score(each, body))
        except TimeoutError:
            each.send(TokenOutput(request=request.id, finish_reason="error", error=LATE, of_answer=True))
        except asyncio.CancelledError:
            each.send(TokenOutput(request=request.id, finish_reason="abort"))
        except Exception as error:
            said = {"message": f"its connection ended: {str(error) or type(error).__name__}"}
            each.send(tokens.failure(request, said, of_answer=False))
        finally:
            if self._open.get(request.id) is each:
                del self._open[request.id]

    async def _answer(self, each: OpenRequest, body: Mapping[str, Any]) -> None:
        reader = tokens.CompletionReader(each.request)
        async with self._post(body) as answer:
            if answer.status != 200:
                each.send(tokens.failure(each.request, await _error(answer)))
                return
            async for line in answer.content:
                if not line.startswith(DATA) or line.startswith(b"data: [DONE]"):
                    continue
                self._heard = time.monotonic()
                output = reader.read(json.loads(line[len(DATA) :]), time.monotonic_ns())
                if output is not None:
                    each.send(output)
        if not each.ended:
            each.send(reader.end())

    async def _score(self, each: OpenRequest, body: Mapping[str, Any]) -> None:
        async with self._post(body) as answer:
            self._heard = time.monotonic()
            if answer.status != 200:
                each.send(tokens.failure(each.request, await _error(answer)))
            else:
                each.send(tokens.scored(each.request, await answer.json()))

    def _post(self, body: Mapping[str, Any]) -> Any:
        assert self._session is not None
        return self._session.post("/v1/completions", json=body)

    # -- ends ---------------------------------------------------------------------------------------------------

    def abort(self, ids: Ids[int]) -> None:
        """End these requests: vLLM does, when their connections close."""
        self._loop.call_soon_threadsafe(self._abort, list(ids))

    def _abort(self, ids: Ids[int]) -> None:
        for id in ids:
            each = self._open.get(id)
            if each is not None and each.task is not None:
                each.task.cancel()

    def lose(self, reason: str) -> None:
        """End all open requests with an error that is not theirs."""
        self._loop.call_soon_threadsafe(self._lose, reason)

    def _lose(self, reason: str) -> None:
        for each in list(self._open.values()):
            each.send(TokenOutput(request=each.request.id, finish_reason="error", error=reason))
            if each.task is not None:
                each.task.cancel()

    def close(self) -> None:
        """Leave it."""
        if self._thread.is_alive():
            with suppress(Exception):
                self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._session is not None:
            await self._session.close()


async def _error(answer: aiohttp.ClientResponse) -> Mapping[str, Any]:
    """What an answer that is no 200 says, in the form of an event's error."""
    text = await answer.text()
    with suppress(ValueError):
        said = json.loads(text)
        if isinstance(said, dict) and isinstance(said.get("error"), dict):
            return said["error"]
    return {"message": text[:500] or answer.reason, "code": answer.status}
