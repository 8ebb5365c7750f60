"""A panic inside a library in Rust, which is no Exception, fails one request and nothing else.

The panic is a real one of the tokenizers library: Llama 3's regex over twelve million spaces.
"""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from apps.llm.engine.grammar.matchers import Matcher
from apps.llm.engine.schedule.answer import Answer
from apps.serving.errors import AnswerFailed, is_panic, panics_as
from tests.llm.serve.serving import LocalServer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
PROMPT = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def panic() -> BaseException:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    with pytest.raises(BaseException) as caught:
        tokenizer.encode_batch_fast([" " * 12_000_000])
    assert is_panic(caught.value) and not isinstance(caught.value, Exception)
    return caught.value


@pytest.fixture
def server(chat_server: LocalServer) -> LocalServer:
    return chat_server


@pytest.fixture
def broken(panic: BaseException, monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str, Callable[..., bool]], None]:
    """Makes a method panic where the condition holds for its arguments."""

    def breaks(kind: type, name: str, where: Callable[..., bool]) -> None:
        method = getattr(kind, name)

        def panics(*arguments: Any) -> Any:
            if where(*arguments):
                raise panic
            return method(*arguments)

        monkeypatch.setattr(kind, name, panics)

    return breaks


def post(server: LocalServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


def test_a_panic_becomes_an_exception_and_nothing_else_does(panic):
    with pytest.raises(AnswerFailed, match="retry-limit"), panics_as(AnswerFailed):
        raise panic
    for other in (KeyboardInterrupt, SystemExit, ValueError):
        with pytest.raises(other), panics_as(AnswerFailed):
            raise other


@pytest.mark.parametrize(
    ("kind", "method"), [(Answer, "take"), (Matcher, "allowed_along"), (Matcher, "consume")], ids=str
)
def test_the_engine_goes_on(server, broken, kind, method):
    """The answers beside it are those of an undisturbed run."""
    alone = post(server, "/v1/completions", **PROMPT).json()["choices"][0]["text"]
    tokens = []

    def third(self, *_):
        mine = getattr(self, "sampling", None) is None or self.sampling.min_p == 0.5
        tokens.append(mine)
        return mine and tokens.count(True) > 2

    with httpx.stream("POST", f"{server.url}/v1/completions", json=PROMPT | {"stream": True}, timeout=60) as beside:
        lines = beside.iter_lines()
        seen = [next(lines)]
        broken(kind, method, third)
        structured = {"response_format": {"type": "json_object"}} if kind is Matcher else {}
        failed = post(server, "/v1/completions", **PROMPT, min_p=0.5, **structured)
        seen += lines
    assert failed.status_code == 500 and failed.json()["error"]["code"] == "answer_failed"
    text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in seen if line.startswith("data: {"))
    assert text == alone
    assert server.engine.stats().running == 0
    server.model.check()
    assert post(server, "/v1/completions", **PROMPT).json()["choices"][0]["text"] == alone


def test_every_dialect_says_so_in_its_own_format(server, broken):
    broken(type(server.engine.tokenizer), "_encoding", lambda self, text, *_: "panic" in text)
    chat = [{"role": "user", "content": "panic"}]
    asked = {
        "/v1/completions": {"prompt": "panic"},
        "/v1/chat/completions": {"messages": chat},
        "/v1/responses": {"input": "panic"},
        "/v1/embeddings": {"input": ["panic"]},
        "/v1/rerank": {"query": "panic", "documents": ["a"]},
        "/tokenize": {"prompt": "panic"},
        "/v1/messages": {"messages": chat, "model": "podslice-demo", "max_tokens": 1},
        "/generate": {"prompt": "panic"},
        "/score": {"prefix": "panic", "suffix": "a"},
    }
    for path, body in asked.items():
        reply = post(server, path, **body)
        assert reply.status_code == 400, (path, reply.status_code, reply.text)
        assert "tokenizer fails" in reply.text
        said = reply.json()
        if path == "/v1/messages":
            assert said["type"] == "error" and said["error"]["type"]
        elif path in ("/generate", "/score"):
            assert said["detail"]
        else:
            assert said["error"]["message"] and said["error"]["type"]
    assert post(server, "/v1/completions", **PROMPT).status_code == 200
