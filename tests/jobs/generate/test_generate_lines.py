"""Lines of the input: which are requests, what is said of the others, where they are in the file."""

import json
from pathlib import Path

import numpy as np
import pytest

from apps.jobs.generation.requests import BadLine, Defaults, read
from apps.llm.batch_api import input_file
from apps.llm.batch_api.input_file import SPAN_LINES, missing, scan
from apps.llm.http.openai.requests import ChatBody, CompletionBody


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"prompt": "Hello"}', CompletionBody),
        ('{"prompt": [1, 2, 3], "id": 7}', CompletionBody),
        ('{"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "n": 2}', ChatBody),
        (
            '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",'
            ' "body": {"messages": [{"role": "user", "content": "Hello"}]}}',
            ChatBody,
        ),
        ('{"custom_id": "b", "url": "/v1/completions", "body": {"prompt": "Hello"}}', CompletionBody),
    ],
)
def test_a_good_line(text: str, kind: type) -> None:
    line = read(4, text.encode())
    assert isinstance(line.body, kind) and line.index == 4 and line.wrapped == ("body" in text)


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("{", None, "not valid JSON"),
        ("", None, "not valid JSON"),
        ("[1]", None, "must be a JSON object"),
        ("{}", "prompt", "exactly one of prompt and messages"),
        ('{"prompt": "a", "messages": []}', "prompt", "exactly one of prompt and messages"),
        ('{"prompt": 5}', "prompt", "prompt must be a string"),
        ('{"prompt": "a", "temperature": "hot"}', "temperature", "temperature: "),
        ('{"prompt": "a", "stream": true}', "stream", "stream: "),
        ('{"messages": [{"role": "robot", "content": "a"}]}', "messages[0].role", "messages[0].role: "),
        ('{"url": "/v1/embeddings", "body": {}}', "url", "url must be"),
        ('{"url": ["/v1/completions"], "body": {}}', "url", "url must be"),
        ('{"url": "/v1/completions", "body": 5}', "body", "body must be"),
        ('{"url": "/v1/completions", "method": "GET", "body": {}}', "method", "method must be POST"),
        ("[" * 100_000, None, "nested too deeply"),
        ("\udcff", None, "not valid JSON"),
    ],
)
def test_a_bad_line_names_itself_and_the_field(text: str, field: str | None, says: str) -> None:
    with pytest.raises(BadLine) as caught:
        read(11, text.encode(errors="surrogateescape"))
    answer = json.loads(caught.value.answer())
    error = answer["response"]["body"]["error"] if "response" in answer else answer["error"]
    assert answer["index"] == 11 and error["param"] == field
    assert error["message"].startswith("line 12: ") and says in error["message"]


def test_a_bad_line_is_answered_in_its_own_shape() -> None:
    with pytest.raises(BadLine) as caught:
        read(0, b'{"custom_id": "x", "url": "/v1/completions", "body": {}}')
    answer = json.loads(caught.value.answer())
    assert (answer["custom_id"], answer["response"]["status_code"], answer["error"]) == ("x", 400, None)
    with pytest.raises(BadLine) as caught:
        read(0, b'{"id": "\\ud800", "prompt": null}')  # half a character: JSON may have it, UTF-8 not
    caught.value.answer().encode()


def test_defaults_are_for_lines_that_leave_the_field_out() -> None:
    defaults = Defaults(max_tokens=5, temperature=0, seed=100)
    params = read(3, b'{"prompt": "a"}', defaults).body.params()
    assert (params.max_tokens, params.temperature, params.seed) == (5, 0, 103)
    params = read(3, b'{"prompt": "a", "max_tokens": 7, "seed": 1, "temperature": null}', defaults).body.params()
    assert (params.max_tokens, params.temperature, params.seed) == (7, 0, 1)
    chat = b'{"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 9}'
    assert read(0, chat, defaults).body.params().max_tokens == 9


@pytest.mark.parametrize("lines", [0, 1, SPAN_LINES, 2 * SPAN_LINES + 5])
@pytest.mark.parametrize("end", ["", "\n", "\n\n \n"])
def test_scan_finds_every_line(tmp_path: Path, lines: int, end: str) -> None:
    texts = [f'{{"prompt": "{i}\r"}}' if i % 7 else "" for i in range(1, lines + 1)]
    file = tmp_path / "in.jsonl"
    file.write_bytes(("\n".join(texts) + end).encode())
    while texts and not texts[-1]:
        texts.pop()
    source = scan(str(file))
    assert source.lines == len(texts)
    assert [text.decode() for span in source.spans for text in source.span(span)] == texts

    done = np.zeros(source.lines, bool)
    done[::3] = True
    left = {i: text for todo in missing(source, done) for i, text in todo.lines(source)}
    assert {i: text.decode() for i, text in left.items()} == {i: t for i, t in enumerate(texts) if i % 3}


def test_long_lines_make_short_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "SPAN_BYTES", 100)
    file = tmp_path / "in.jsonl"
    texts = [b"a" * size for size in (1, 100, 50, 48, 1, 1)]
    file.write_bytes(b"\n".join(texts))
    source = scan(str(file))
    assert [(span.first, span.lines) for span in source.spans] == [(0, 1), (1, 1), (2, 2), (4, 2)]
    assert [text for span in source.spans for text in source.span(span)] == texts


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"prompt": "a"}\n' * 10)
    source = scan(str(file))
    file.write_text('{"prompt": "longer than it was"}\n' * 10)
    with pytest.raises(ValueError, match="changed while it was being read"):
        source.span(source.spans[0])
