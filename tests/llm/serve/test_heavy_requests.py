"""Requests that cost a server much to read hold up nobody else.

Beside each, in the same event loop, a heartbeat beats and another caller's answer comes, the same as undisturbed.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from apps.llm.api import ANYONE, Caller, QueueFull
from apps.llm.http.app import http_app
from apps.llm.text import aside
from apps.llm.text.admission import Admission
from apps.llm.text.aside import FairThreads
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from ray_configs.applications.callers import CallerConfig
from tests.llm.serve.serving import LocalServer, wait_until

SIZE = 31_000_000
BEAT_S = 0.001
ANSWER = {"prompt": "Once", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
HELLO = '{"role": "user", "content": "Hello"}'


def body(begins: str, item: str, ends: str, count: int) -> bytes:
    return (begins + ", ".join([item] * count) + ends).encode()


TOOL = '{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}'
CHAT = '{"messages": [' + HELLO + "], "
COMPLETION = '{"prompt": "a", '
NAMED = '{"model": "podslice-demo", "max_tokens": 1, '
HEAVY: dict[str, Callable[[], tuple[str, bytes]]] = {
    "a long prompt": lambda: ("/v1/completions", b'{"prompt": "%s"}' % (b"word " * (SIZE // 5))),
    "only spaces": lambda: ("/v1/completions", b'{"prompt": "%s"}' % (b" " * SIZE)),
    "a long message": lambda: (
        "/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"a" * SIZE),
    ),
    "a long system prompt": lambda: (
        "/v1/messages",
        b'{"model": "podslice-demo", "max_tokens": 1, "system": "%s", "messages": [%s]}'
        % (b"a" * SIZE, HELLO.encode()),
    ),
    "a long input": lambda: ("/v1/responses", b'{"input": "%s"}' % (b"a " * (SIZE // 2))),
    "inputs": lambda: ("/v1/embeddings", body('{"input": [', '"' + "word " * 3999 + '"', "]}", 500)),
    "documents": lambda: ("/v1/rerank", body('{"query": "a", "documents": [', '"' + "word " * 3999 + '"', "]}", 500)),
    "suffixes": lambda: ("/score", body('{"prefix": "a", "suffix": [', '"' + "word " * 9 + '"', "]}", 300_000)),
    "JetStream's": lambda: ("/generate", b'{"prompt": "%s"}' % (b"word " * (SIZE // 5))),
    "Saxml's": lambda: ("/generate", b'{"query": "%s"}' % (b"word " * (SIZE // 5))),
    "messages": lambda: ("/v1/chat/completions", body('{"messages": [', HELLO, "]}", 700_000)),
    "Anthropic's messages": lambda: (
        "/v1/messages",
        body(NAMED + '"messages": [', HELLO, "]}", 90_000),
    ),
    "items": lambda: ("/v1/responses", body('{"input": [', HELLO, "]}", 90_000)),
    "tools": lambda: ("/v1/chat/completions", body(CHAT + '"tools": [', TOOL, "]}", 100_000)),
    "fewer tools": lambda: ("/v1/chat/completions", body(CHAT + '"tools": [', TOOL, "]}", 30_000)),
    "stop strings": lambda: ("/v1/completions", body(COMPLETION + '"stop": [', '"stop"', "]}", 2_000_000)),
    "fewer stop strings": lambda: ("/v1/completions", body(COMPLETION + '"stop": [', '"stop"', "]}", 500_000)),
    "a long stop string": lambda: ("/v1/completions", b'{"prompt": "a", "stop": "%s"}' % (b"a" * SIZE)),
    "stop tokens": lambda: ("/v1/completions", body(COMPLETION + '"stop_token_ids": [', "5", "]}", 5_000_000)),
    "wrong stop tokens": lambda: ("/v1/completions", body(COMPLETION + '"stop_token_ids": [', '"a"', "]}", 900_000)),
    "biases": lambda: (
        "/v1/completions",
        json.dumps({"prompt": "a", "logit_bias": dict.fromkeys(range(400_000), 1)}).encode(),
    ),
    "token ids": lambda: ("/v1/completions", body('{"prompt": [', "5", "]}", 1_000_000)),
    "lists of ids": lambda: ("/v1/completions", body('{"prompt": [', "[5]", "]}", 3_000_000)),
    "a schema": lambda: (
        "/v1/chat/completions",
        body(CHAT + '"chat_template_kwargs": {"a": [', "[]", "]}}", 5_000_000),
    ),
    "what is ignored": lambda: ("/v1/completions", body(COMPLETION + '"other": [', "{}", "]}", 5_000_000)),
    "tokens": lambda: ("/detokenize", body('{"tokens": [', "5", "]}", 1_000_000)),
    "answers": lambda: ("/v1/completions", body('{"n": 128, "prompt": [', '"a"', "]}", 256)),
    "a long expression": lambda: ("/v1/completions", b'{"prompt": "a", "guided_regex": "%s"}' % (b"/" * SIZE)),
    "a long choice": lambda: ("/v1/completions", b'{"prompt": "a", "guided_choice": ["%s"]}' % (b"a" * SIZE)),
    "parts of a message": lambda: (
        "/v1/chat/completions",
        body('{"messages": [{"role": "user", "content": [', '{"type": "text", "text": "a"}', "]}]}", 100_000),
    ),
    "calls of a message": lambda: (
        "/v1/chat/completions",
        body(
            '{"messages": [{"role": "assistant", "tool_calls": [',
            '{"id": "a", "function": {"name": "f", "arguments": "{}"}}',
            "]}]}",
            40_000,
        ),
    ),
    "blocks of a system prompt": lambda: (
        "/v1/messages",
        body(NAMED + '"messages": [' + HELLO + '], "system": [', '{"type": "text", "text": "a"}', "]}", 100_000),
    ),
    "functions in namespaces": lambda: (
        "/v1/responses",
        body(
            '{"input": "a", "tools": [',
            '{"type": "namespace", "name": "n", "tools": ['
            + ", ".join(['{"type": "function", "name": "f"}'] * 60)
            + "]}",
            "]}",
            900,
        ),
    ),
    "unknown inputs": lambda: (
        "/generate",
        json.dumps({"query": "a", "extra_inputs": dict.fromkeys(map(str, range(300_000)), 1)}).encode(),
    ),
    "half a character": lambda: ("/v1/completions", b'{"prompt": "%s\\ud83d"}' % (b"a" * SIZE)),
}


@asynccontextmanager
async def client_of(server: LocalServer) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(http_app(server.model))
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None) as client:
        yield client


async def beating(beats: list[int]) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        beats[0] += 1


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The characters of each text that is tokenized."""
    lengths: list[int] = []
    encoding = ModelTokenizer._encoding

    def counting(self: ModelTokenizer, text: str, special: bool) -> Any:
        lengths.append(len(text))
        return encoding(self, text, special)

    monkeypatch.setattr(ModelTokenizer, "_encoding", counting)
    return lengths


@pytest.mark.parametrize("name", HEAVY)
def test_it_is_refused_after_little_work(chat_server: LocalServer, read: list[int], name: str) -> None:
    """Oracle: the answer of an undisturbed run."""
    path, content = HEAVY[name]()

    async def run() -> None:
        async with client_of(chat_server) as client:
            alone = (await client.post("/v1/completions", json=ANSWER)).json()["choices"][0]["text"]
            read.clear()
            beats = [0]
            heart = asyncio.create_task(beating(beats))
            beside = asyncio.create_task(client.post("/v1/completions", json=ANSWER))
            heavy = await asyncio.gather(*(client.post(path, content=content) for _ in range(2)))
            assert (await beside).json()["choices"][0]["text"] == alone
            heart.cancel()
            for reply in heavy:
                assert reply.status_code in (400, 413), (reply.status_code, reply.text[:300])
                assert len(reply.content) < 3000
                json.loads(reply.content)
            assert beats[0] > 0 or len(content) < 10_000, "what is small may be refused between two beats"
            assert sum(read) < 400_000, "a few pieces of it"

    asyncio.run(run())
    wait_until(lambda: chat_server.engine.stats().running + chat_server.engine.stats().waiting == 0)


def test_what_takes_long_is_done_aside(chat_server: LocalServer) -> None:
    """Oracle: the library's own call, which would have held the event loop to its end."""
    text = "the quick brown fox jumps over the lazy dog " * 12_000

    async def run() -> tuple[list[int], int]:
        async with client_of(chat_server) as client:
            beats = [0]
            heart = asyncio.create_task(beating(beats))
            reply = await client.post("/tokenize", json={"prompt": text})
            heart.cancel()
            return reply.json()["tokens"], beats[0]

    tokens, beats = asyncio.run(run())
    assert tokens == chat_server.engine.tokenizer.fast.encode(text).ids
    assert beats > 10


def test_a_variable_of_the_chat_template_counts_as_text(
    chat_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates write some into the prompt, as Llama 3's does with `date_string`."""
    names: list[str] = []
    render = ModelTokenizer.render

    def seen(self: ModelTokenizer, *arguments: Any, **named: Any) -> str:
        names.append(threading.current_thread().name)
        return render(self, *arguments, **named)

    monkeypatch.setattr(ModelTokenizer, "render", seen)
    hello = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}

    async def run() -> None:
        async with client_of(chat_server) as client:
            for size in (10, 20_000):
                fields = {"date_string": "a " * size}
                reply = await client.post("/v1/chat/completions", json=hello | {"chat_template_kwargs": fields})
                assert reply.status_code == 200, reply.text

    asyncio.run(run())
    assert [name == "podslice-texts" for name in names] == [False, True]


def test_limits_are_checked_before_the_work(
    chat_server: LocalServer, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that has used up its tokens gets 429, and nothing of its text is read."""
    limited = Admission({"anonymous": CallerConfig(tokens_per_minute=10)}, 100)
    monkeypatch.setattr(chat_server.engine, "admission", limited)
    long = {"prompt": "the " * 3000, "max_tokens": 1}

    async def run() -> list[int]:
        async with client_of(chat_server) as client:
            statuses = []
            for body in (ANSWER, long, {"prompt": "a"}):
                statuses.append((await client.post("/v1/completions", json=body)).status_code)
                if body is ANSWER:
                    read.clear()
            return statuses

    assert asyncio.run(run()) == [200, 429, 429]
    assert not read


def test_a_text_is_charged_while_it_is_read() -> None:
    now = [0.0]
    admission = Admission({"a": CallerConfig(tokens_per_minute=60)}, 10, lambda: now[0])
    caller = Caller("a")
    with admission.preparing(caller, 100):
        assert admission.stats()["a"].requests == 1
        with pytest.raises(QueueFull):
            admission.check(caller)
    admission.check(caller)  # what it used is counted by `admit`
    with pytest.raises(ValueError, match="too long"), admission.preparing(caller, 100):
        raise ValueError("too long")
    with pytest.raises(QueueFull):
        admission.check(caller)
    assert admission.stats()["a"].requests == 0


def held(threads: FairThreads, caller: Caller, go: asyncio.Event, began: list[str], name: str) -> "asyncio.Task[str]":
    loop = asyncio.get_running_loop()

    def work(going: Callable[[], None]) -> str:
        loop.call_soon_threadsafe(began.append, name)
        while not go.is_set():
            going()
        return name

    return asyncio.create_task(threads.run(caller, work))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


def test_one_caller_cannot_hold_all_threads() -> None:
    async def run() -> None:
        threads, go, began = FairThreads(2), asyncio.Event(), list[str]()
        first, other = Caller("first"), Caller("other")
        many = [held(threads, first, go, began, f"first {i}") for i in range(5)]
        await until(lambda: len(began) == 1)
        batch = held(threads, Caller("batch", background=True), go, began, "batch")
        await until(lambda: len(began) == 2)
        theirs = held(threads, other, go, began, "other")
        batch.cancel()  # its client leaves, and frees its thread before its work is done
        await until(lambda: len(began) == 3)
        assert began == ["first 0", "batch", "other"]
        many[1].cancel()
        await asyncio.sleep(0)
        go.set()
        assert await theirs == "other"
        done = await asyncio.gather(*many, return_exceptions=True)
        assert [isinstance(each, asyncio.CancelledError) for each in done] == [False, True, False, False, False]
        assert "first 1" not in began, "what nobody waits for is not begun"

    asyncio.run(run())


def test_one_caller_cannot_queue_without_end() -> None:
    async def run() -> None:
        threads, go, began = FairThreads(1), asyncio.Event(), list[str]()
        tasks = [held(threads, ANYONE, go, began, "text") for _ in range(aside.MOST_WAITING + 3)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert all(isinstance(task.exception(), QueueFull) for task in done)
        go.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
