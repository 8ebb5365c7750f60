"""An application over the tiny model that stores responses, and its clients."""

from collections.abc import Iterator

import openai
import pytest

from apps.llm.http.app import http_app
from apps.serving.ingress.api_keys import principals
from tests.http_servers import served
from tests.llm.serve.dialects.responses.asking import KEPT, client_of
from tests.llm.serve.serving import LocalServer


@pytest.fixture(scope="session")
def keeping(chat_server: LocalServer) -> Iterator[str]:
    """URL of an application over the same model that stores responses, for two callers."""
    keys = principals(["alice=a-key", "alice=a-second-key", "bob=b-key"])
    with served(http_app(chat_server.model, keys, stored_responses=KEPT)) as url:
        yield url


@pytest.fixture
def client(keeping: str) -> Iterator[openai.OpenAI]:
    with client_of(keeping) as client:
        yield client


@pytest.fixture
def stateless(chat_server: LocalServer) -> Iterator[openai.OpenAI]:
    with client_of(chat_server.url) as client:
        yield client
