"""What a client sees while no engine is there. The clients are the official one, which has to skip the comments, and a
plain reader of bytes."""

import threading
from collections.abc import Callable, Iterator

import httpx
import openai
import pytest

from apps.llm.http.app import http_app
from apps.llm.router.fleet import Fleet
from apps.llm.served.text_model import TextModel
from apps.llm.text import Engine
from apps.serving.ingress import event_stream
from tests.http_servers import served
from tests.llm.router.mortal import Mortal, in_words

ASKED = {"model": "m", "prompt": "the quick", "max_tokens": 6, "seed": 1, "stream": True}


@pytest.fixture
def fleet(load: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(event_stream, "QUIET_S", 0.1)
    fleet = Fleet(load().capabilities, kind="a replica on v5e:4x8")
    yield fleet
    fleet.shutdown()


@pytest.fixture
def url(load: Callable[..., Engine], fleet: Fleet) -> Iterator[str]:
    with served(http_app(TextModel("m", in_words(load(), fleet), step_deadline_s=60))) as url:
        yield url


def test_a_stream_says_that_it_waits_and_goes_on(load: Callable[..., Engine], fleet: Fleet, url: str) -> None:
    first, second = Mortal(load().tokens, fleet, 3), Mortal(load().tokens, fleet)
    with httpx.stream("POST", f"{url}/v1/completions", json=ASKED, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith(": waiting for a replica on v5e:4x8, ")
        fleet.join(first, "first")  # dies at its third token
        read = []
        for line in lines:
            read.append(line)
            if line.startswith(":") and first.dead and not fleet.members:
                fleet.join(second, "second")
    assert first.dead and read[-2:] == ["data: [DONE]", ""]
    assert "error" not in "".join(read)
    fleet.leave(second)


def test_the_official_client_gets_the_answer_alone(load: Callable[..., Engine], fleet: Fleet, url: str) -> None:
    threading.Timer(0.5, fleet.join, (load().tokens, "the engine")).start()
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        texts = [event.choices[0].text for event in client.completions.create(**ASKED)]
        again = [event.choices[0].text for event in client.completions.create(**ASKED)]
    assert "".join(texts) == "".join(again) != ""
    fleet.leave(load().tokens)


def test_metrics_without_an_engine(url: str) -> None:
    answer = httpx.get(f"{url}/metrics", timeout=60)
    assert answer.status_code == 200 and "vllm:kv_cache_usage_perc" in answer.text
