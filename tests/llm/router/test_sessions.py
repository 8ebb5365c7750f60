"""Requests of a session go to one engine, by the headers that routers of others read.

Dynamo's documents name `X-Dynamo-Session-ID`, those of SGLang's gateway `x-smg-routing-key`; AIPerf sends these and
`X-Session-ID`.
"""

from collections import Counter
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from apps.llm.http.app import http_app
from apps.llm.router.fleet import Fleet
from apps.llm.served.text_model import TextModel
from apps.llm.text import Engine
from tests.llm.engine.asking import settled
from tests.llm.router.mortal import Mortal, in_words

HEADERS = "X-Session-ID", "X-Dynamo-Session-ID", "x-smg-routing-key"


class Asked(Mortal):
    """Counts what it is asked for."""

    def __init__(self, *arguments: object):
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.count = 0

    def submit(self, requests, sink):  # type: ignore[no-untyped-def]
        self.count += len(requests)
        return super().submit(requests, sink)


@pytest.mark.parametrize("header", HEADERS)
def test_a_session_goes_to_one_engine(load: Callable[..., Engine], header: str) -> None:
    """Prompts that share nothing, of four sessions to four engines; without the header they spread."""
    engine = load()
    fleet = Fleet(engine.capabilities)
    engines = [Asked(engine.tokens, fleet) for _ in range(4)]
    for number, member in enumerate(engines):
        fleet.join(member, f"replica {number}")
    client = TestClient(http_app(TextModel("m", in_words(engine, fleet), 60.0)))

    def asked(headers: dict[str, str], prompt: str) -> int:
        before = [member.count for member in engines]
        body = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True}
        assert client.post("/v1/completions", json=body, headers=headers).status_code == 200
        (one,) = (number for number, member in enumerate(engines) if member.count > before[number])
        return one

    for session in range(4):
        assert len({asked({header: f"s{session}"}, f"{session} {turn} is a turn") for turn in range(6)}) == 1
    assert len(Counter(asked({}, f"{turn} is a request of none") for turn in range(8))) > 1
    fleet.shutdown()
    settled(engine)
