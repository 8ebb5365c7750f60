"""What one key may keep. The official client says what is refused; the folder's own sizes say what is there."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from apps.llm.batch_api.records import Limits
from tests.http_servers import served
from tests.llm.batch_api.serving import StandIn, app_of, begin, client_of, ended, kept_in, lines
from tests.llm.batch_api.test_files_http import HEADERS, PURPOSE, form

KEYS = ("a=a-key", "b=b-key")
LIMITS = Limits(file_bytes=2**20, lines=1000, key_bytes=100_000, key_files=5, key_open=2)


def upload(client: openai.OpenAI, size: int) -> Any:
    return client.files.create(file=("in.jsonl", b"x" * size), purpose="batch")


def refused(client: openai.OpenAI, size: int) -> str:
    with pytest.raises(openai.RateLimitError) as caught:
        upload(client, size)
    error = caught.value
    assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota")
    assert "You exceeded your current quota" in error.message
    return error.message


def bytes_of(folder: Path, owner: str = "a") -> int:
    return sum(path.stat().st_size for path in (folder / "keys" / owner / "files").glob("*.jsonl"))


@pytest.fixture
def two_replicas(tmp_path: Path) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(served(app_of(kept_in(tmp_path, LIMITS), StandIn(), KEYS), lifespan="on"))
            for _ in range(2)
        ]


def test_bytes(tmp_path: Path, two_replicas: list[str]) -> None:
    one, other = (client_of(url, "a-key") for url in two_replicas)
    first = upload(one, 60_000)
    assert "100,000 bytes" in refused(other, 60_000) and bytes_of(tmp_path) == 60_000
    upload(other, 40_000)
    refused(one, 1)
    upload(client_of(two_replicas[0], "b-key"), 60_000)
    one.files.delete(first.id)
    upload(one, 60_000)
    with served(app_of(kept_in(tmp_path, LIMITS), StandIn(), KEYS), lifespan="on") as restarted:
        refused(client_of(restarted, "a-key"), 1)


def test_number(two_replicas: list[str]) -> None:
    client = client_of(two_replicas[0], "a-key")
    kept = [upload(client, 10) for _ in range(LIMITS.key_files)]
    assert "5 files, of at most 5" in refused(client, 10)
    with pytest.raises(openai.RateLimitError):  # its output would be one more
        client.batches.create(input_file_id=kept[0].id, endpoint="/v1/completions", completion_window="24h")
    client.files.delete(kept[0].id)
    upload(client, 10)


def test_the_official_client_does_not_try_again(two_replicas: list[str]) -> None:
    client, sent = client_of(two_replicas[0], "a-key"), list[httpx.Request]()
    upload(client, 99_999)
    seen = httpx.Client(event_hooks={"request": [sent.append]})
    refused(openai.OpenAI(base_url=client.base_url, api_key="a-key", max_retries=2, http_client=seen), 60_000)
    assert len(sent) == 1


def test_many_at_once(tmp_path: Path, two_replicas: list[str]) -> None:
    outcomes: list[bool] = []

    def one(url: str) -> None:
        try:
            upload(client_of(url, "a-key"), 30_000)
            outcomes.append(True)
        except openai.RateLimitError:
            outcomes.append(False)

    threads = [threading.Thread(target=one, args=(two_replicas[number % 2],)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 16 and bytes_of(tmp_path) == 30_000 * sum(outcomes) <= LIMITS.key_bytes
    client = client_of(two_replicas[0], "a-key")
    while bytes_of(tmp_path) < 90_000:  # uploads at once may refuse each other; one after another they fit
        upload(client, 30_000)
    refused(client, 30_000)


def test_an_upload_counts_while_it_arrives(tmp_path: Path, two_replicas: list[str]) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    content = form(PURPOSE, ("file", "f", b"x" * 80_000))

    async def pieces() -> Any:
        yield content[:80_000]
        begun.set()
        await go_on.wait()
        yield content[80_000:]

    async def run() -> None:
        headers = HEADERS | {"Authorization": "Bearer a-key"}
        async with httpx.AsyncClient(timeout=60) as client:
            slow = asyncio.create_task(client.post(f"{two_replicas[0]}/v1/files", content=pieces(), headers=headers))
            await begun.wait()
            while not list((tmp_path / "keys/a/files").glob("*.partial")) or bytes_of_partial(tmp_path) < 60_000:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(refused, client_of(two_replicas[1], "a-key"), 60_000)
            go_on.set()
            assert (await slow).status_code == 200

    asyncio.run(run())


def bytes_of_partial(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "keys/a/files").glob("*.partial"))


def test_open_batches(tmp_path: Path) -> None:
    model = StandIn(may_answer=asyncio.Semaphore(0))
    with served(app_of(kept_in(tmp_path, LIMITS), model, KEYS), lifespan="on") as url:
        client, other = client_of(url, "a-key"), client_of(url, "b-key")
        opened = [begin(client, lines("x")) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="2 batches of this key have not ended, of at most 2") as caught:
            begin(client, lines("x"))
        assert caught.value.code == "insufficient_quota"
        begin(other, lines("x"))
        client.batches.cancel(opened[0].id)
        assert ended(client, opened[0]).status == "cancelled"
        begin(client, lines("x"))
        assert len(client.batches.list().data) == 3


def test_what_is_older_than_it_may_be_is_deleted(tmp_path: Path) -> None:
    """But not an open batch, nor its input. The official client lists what is left."""
    store = kept_in(tmp_path, replace(LIMITS, keep_s=3600))
    with served(app_of(store, StandIn(may_answer=asyncio.Semaphore(0)), KEYS), lifespan="on") as url:
        client = client_of(url, "a-key")
        kept = begin(client, lines("waits"))
        old = upload(client, 10)
        assert store.expire() == 0
        time.sleep(0.05)
        store.limits = replace(LIMITS, keep_s=0.01)
        assert store.expire() == 1 and [file.id for file in client.files.list()] == [kept.input_file_id]
        assert not list(tmp_path.rglob(f"{old.id}*")) and client.batches.retrieve(kept.id).id == kept.id
        client.batches.cancel(kept.id)
        ended(client, kept)
        while list((tmp_path / "open").iterdir()):
            time.sleep(0.02)
        assert store.expire() >= 2 and not list(client.files.list())
        assert not list(tmp_path.rglob(f"{kept.id}*")) and client.batches.list().data == []
