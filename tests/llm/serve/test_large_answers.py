"""A large answer is written beside the event loop, which answers others meanwhile, and is what a small one would be."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from starlette.responses import JSONResponse

from apps.llm.api import ANYONE, Caller
from apps.llm.http.large_json import SLICE, in_slices
from apps.llm.text import aside
from apps.llm.text.aside import FairThreads
from tests.llm.serve.serving import LocalServer
from tests.llm.serve.test_heavy_requests import beating, client_of

ASKED = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
CHAT = ASKED | {"messages": [{"role": "user", "content": "Hello"}], "logprobs": True, "top_logprobs": 20}
COMPLETION = ASKED | {"prompt": "Once", "logprobs": 5}
TEXT = "the quick brown fox " * 40


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which JSON bodies are made."""
    names: list[str] = []

    def seen(kind: type[JSONResponse]) -> None:
        render = kind.render

        def rendering(self: JSONResponse, content: Any) -> bytes:
            names.append(threading.current_thread().name)
            return render(self, content)

        monkeypatch.setattr(kind, "render", rendering)

    for kind in (JSONResponse, *JSONResponse.__subclasses__()):
        if "render" in vars(kind):
            seen(kind)
    return names


@pytest.mark.slow
@pytest.mark.parametrize(
    "path, asked, type_",
    [("/v1/chat/completions", CHAT, ChatCompletion), ("/v1/completions", COMPLETION, Completion)],
    ids=["chat", "completion"],
)
def test_answers_with_log_probabilities_are_written_aside(
    chat_server: LocalServer, writers: list[str], path: str, asked: dict[str, Any], type_: type[Any]
) -> None:
    """Oracles: OpenAI's types read it; each of its greedy answers is the one that is asked for alone."""
    n = 48

    async def run() -> tuple[dict[str, Any], httpx.Response, int]:
        async with client_of(chat_server) as client:
            alone = (await client.post(path, json=asked)).json()
            assert writers == [threading.current_thread().name]
            beats = [0]
            heart = asyncio.create_task(beating(beats))
            many = await client.post(path, json=asked | {"n": n})
            heart.cancel()
            assert many.status_code == 200, many.text[:300]
            return alone, many, beats[0]

    alone, many, beats = asyncio.run(run())
    assert writers[1:] == ["podslice-texts"]
    assert many.headers["content-type"] == "application/json"
    whole = many.json()
    type_.model_validate(whole, strict=True)
    assert whole["usage"]["completion_tokens"] == n * ASKED["max_tokens"]
    (one,) = alone["choices"]
    for i, choice in enumerate(whole["choices"]):
        assert close(choice, one | {"index": i})
    assert beats > 10


def close(found: Any, wanted: Any) -> bool:
    """Equal, up to what a sum of floats differs by between batches of other sizes."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(close(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(close, found, wanted))
    return found == (pytest.approx(wanted, abs=1e-4) if isinstance(wanted, float) else wanted)


LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "counted tokens": ("/tokenize", {"prompt": TEXT * 60, "return_token_strs": True}),
    "a text of tokens": ("/detokenize", {"tokens": [65] * 9000}),
    "ranked documents": ("/v1/rerank", {"query": "fox", "documents": [TEXT] * 20}),
    "vectors": ("/v1/embeddings", {"input": ["fox"] * 300, "encoding_format": "float"}),
    "scores of tokens": ("/score", {"prefix": "the", "suffix": [" fox" * 90] * 128}),
}


@pytest.mark.parametrize("name", LARGE)
def test_other_large_answers_are_written_aside(
    chat_server: LocalServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Oracle: the answer that the event loop writes where nothing counts as large."""
    path, asked = LARGE[name]
    aside_by: list[str] = []
    run = FairThreads.run

    async def seen(self: FairThreads, caller: Caller, work: Callable[..., Any], refused: bool = True) -> Any:
        aside_by.append("read" if refused else "written")
        return await run(self, caller, work, refused)

    monkeypatch.setattr(FairThreads, "run", seen)

    async def answer() -> Any:
        async with client_of(chat_server) as client:
            reply = await client.post(path, json=asked)
            assert reply.status_code == 200, reply.text[:300]
            return {field: value for field, value in reply.json().items() if field not in ("id", "created")}

    found = asyncio.run(answer())
    assert aside_by.count("written") == 1
    aside_by.clear()
    monkeypatch.setattr("apps.llm.served.texts.LONG_TEXT", 2**40)
    assert close(found, asyncio.run(answer()))
    assert not aside_by


@pytest.mark.parametrize("count", [0, 1, SLICE, SLICE + 1, 3 * SLICE, 3 * SLICE + 7])
def test_slices_are_the_json_of_the_whole(count: int) -> None:
    """Oracle: Python's json."""
    items = [
        {"token": f"é{i}", "logprob": -i / 3, "bytes": list(range(i % 5)), "top": [[None, True]]} for i in range(count)
    ]
    whole = {"a": items, "é": {"list": items, "deep": {"list": items}}, "text": '"\n', "empty": {}, "none": None}
    assert json.loads(in_slices(whole)) == whole
    assert b" " not in in_slices(whole)


def test_an_answer_that_is_there_waits_for_a_thread() -> None:
    """It has been computed: it is not refused as one more text would be."""

    async def run() -> None:
        threads, go = FairThreads(1), threading.Event()
        many = [asyncio.create_task(threads.run(ANYONE, lambda _: go.wait(240))) for _ in range(aside.MOST_WAITING)]
        await asyncio.sleep(0)
        answer = asyncio.create_task(threads.run(ANYONE, lambda _: "written", refused=False))
        await asyncio.sleep(0)
        go.set()
        assert await answer == "written"
        assert all(await asyncio.gather(*many))

    asyncio.run(run())
