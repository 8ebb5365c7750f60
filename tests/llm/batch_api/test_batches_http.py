"""Batches over HTTP, with OpenAI's own client: statuses, outputs, bad files, cancelling, expiry, keys."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from apps.llm.batch_api.records import Limits
from tests.llm.batch_api.serving import StandIn, answers, batch_server, begin, client_of, ended, lines, until


def test_a_life(tmp_path: Path) -> None:
    model = StandIn(refusals=3)
    with batch_server(tmp_path, model) as client:
        prompts = [f"bad {i}" if i % 10 == 9 else str(i) for i in range(40)]
        file = client.files.create(file=("in.jsonl", lines(*prompts)), purpose="batch")
        asked = {"endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"night": "1"}}
        batch = client.batches.create(input_file_id=file.id, **asked)
        assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"night": "1"})
        assert batch.expires_at == batch.created_at + 24 * 3600
        done = ended(client, batch)
        assert done.status == "completed" and done.errors is None
        assert (done.input_file_id, done.endpoint, done.model) == (file.id, "/v1/completions", model.name)
        assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
        counts = done.request_counts
        assert (counts.total, counts.completed, counts.failed) == (40, 36, 4)
        good, bad = answers(client, done.output_file_id), answers(client, done.error_file_id)
        assert [line["custom_id"] for line in good] == [f"line-{i}" for i in range(40) if i % 10 != 9]
        assert good[1]["response"]["status_code"] == 200 and good[1]["error"] is None
        assert good[1]["response"]["body"]["choices"][0]["text"] == "answer to 1"
        assert [line["custom_id"] for line in bad] == ["line-9", "line-19", "line-29", "line-39"]
        assert bad[0]["response"]["status_code"] == 400
        assert bad[0]["response"]["body"]["error"]["param"] == "prompt"
        assert len({line["id"] for line in good + bad}) == 40
        about = client.files.retrieve(done.output_file_id)
        assert about.purpose == "batch_output" and about.filename == f"{batch.id}_output.jsonl"
        assert about.bytes == len(client.files.content(done.output_file_id).content)
        # Ended batches are no longer polled.
        until(client, batch, lambda _: not list((tmp_path / "open").iterdir()))
    assert set(model.asked.values()) == {1} and model.most <= model.max_batch_size
    left = sorted(path.name for path in (tmp_path / "keys/default/batches" / batch.id).iterdir())
    assert left == ["batch.json", "end.json"]


def line(**changes: Any) -> bytes:
    whole = {"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": {"prompt": "p"}} | changes
    return json.dumps({name: value for name, value in whole.items() if value is not None}).encode()


BAD_LINES = [
    (b"{", "invalid_json", None, "not valid JSON"),
    (b"[]", "invalid_type", None, "JSON object"),
    (b"\xff", "invalid_json", None, "not valid JSON"),
    (b"", "invalid_json", None, "not valid JSON"),
    (line(custom_id=None), "invalid_value", "custom_id", "string"),
    (line(custom_id=7), "invalid_value", "custom_id", "string"),
    (line(custom_id="ok"), "duplicate_custom_id", "custom_id", "already used by line 1"),
    (line(url="/v1/embeddings"), "invalid_value", "url", "/v1/completions"),
    (line(url=["/v1/completions"]), "invalid_value", "url", "/v1/completions"),
    (line(method="GET"), "invalid_value", "method", "POST"),
    (line(body=None), "invalid_type", "body", "JSON object"),
    (line(body={"prompt": "p", "model": "gpt-4o"}), "model_not_found", "model", "stand-in"),
    (line(body={"prompt": "p", "stream": True}), "invalid_value", "stream", "not streamed"),
]


def test_bad_lines_are_named_and_nothing_is_asked(tmp_path: Path) -> None:
    model = StandIn()
    with batch_server(tmp_path, model) as client:
        done = ended(client, begin(client, b"\n".join([line(custom_id="ok"), *(bad for bad, *_ in BAD_LINES), line()])))
    assert done.status == "failed" and done.failed_at >= done.created_at and done.output_file_id is None
    found = [(error.line, error.code, error.param) for error in done.errors.data]
    assert found == [(number, code, param) for number, (_, code, param, _) in enumerate(BAD_LINES, 2)]
    for error, (_, _, _, said) in zip(done.errors.data, BAD_LINES):
        assert said in error.message
    assert not model.asked


def test_bad_files(tmp_path: Path) -> None:
    with batch_server(tmp_path, limits=Limits(10_000, 150)) as client:
        for content, code in ((b"", "empty_file"), (b"\n\n", "empty_file"), (b"{}\n" * 151, "too_many_lines")):
            failed = ended(client, begin(client, content))
            assert [error.code for error in failed.errors.data] == [code], failed
        failed = ended(client, begin(client, b"{}\n" * 150))
        assert len(failed.errors.data) == 101 and "50 more lines" in failed.errors.data[-1].message


def test_what_a_batch_cannot_be_made_of(tmp_path: Path) -> None:
    with batch_server(tmp_path) as client:
        file = client.files.create(file=("in.jsonl", lines("a")), purpose="batch")
        good = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}
        done = ended(client, client.batches.create(**good))
        for field, value in (
            ("input_file_id", "file-" + "0" * 28),
            ("input_file_id", "../../../etc/passwd"),
            ("input_file_id", done.output_file_id),
            ("endpoint", "/v1/images/generations"),
            ("completion_window", "24"),
            ("completion_window", "0h"),
            ("completion_window", "31d"),
            ("metadata", {"k": "v" * 513}),
            ("metadata", {str(i): "v" for i in range(17)}),
            ("output_expires_after", {"anchor": "created_at", "seconds": 3600}),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                client.batches.create(**good | {field: value})
            assert refused.value.param.startswith(field), (field, value, refused.value)
        with pytest.raises(openai.NotFoundError, match="No batch found"):
            client.batches.retrieve("batch_" + "0" * 28)


def test_cancel_keeps_the_answers_so_far(tmp_path: Path) -> None:
    import asyncio

    model = StandIn(may_answer=asyncio.Semaphore(3))
    with batch_server(tmp_path, model) as client:
        batch = begin(client, lines(*map(str, range(20))))
        until(client, batch, lambda now: now.request_counts.completed == 3)
        cancelling = client.batches.cancel(batch.id)
        assert cancelling.status == "cancelling" and cancelling.cancelling_at >= batch.created_at
        done = ended(client, batch)
        assert done.status == "cancelled" and done.cancelled_at >= cancelling.cancelling_at
        assert len(answers(client, done.output_file_id)) == 3 and done.error_file_id is None
        assert (done.request_counts.total, done.request_counts.completed) == (20, 3)
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with status 'cancelled'"):
            client.batches.cancel(batch.id)
    assert model.running == 0 and sum(model.asked.values()) <= 3 + model.max_batch_size


def test_expiry_keeps_the_answers_so_far_and_names_the_rest(tmp_path: Path) -> None:
    import asyncio

    for window in ("2s", "10s", "50s"):  # a busy machine may need longer for two answers
        with batch_server(tmp_path / window, StandIn(may_answer=asyncio.Semaphore(2))) as client:
            done = ended(client, begin(client, lines(*map(str, range(5))), window=window), 120)
            assert done.status == "expired" and done.expired_at >= done.expires_at
            good, bad = answers(client, done.output_file_id), answers(client, done.error_file_id)
        if len(good) == 2:
            break
    assert len(good) == 2 and (done.request_counts.completed, done.request_counts.failed) == (2, 3)
    assert {each["custom_id"] for each in good + bad} == {f"line-{i}" for i in range(5)}
    assert all(each["response"] is None and each["error"]["code"] == "batch_expired" for each in bad)


def test_lists_have_pages(tmp_path: Path) -> None:
    with batch_server(tmp_path) as client:
        batches = [begin(client, lines(str(i))) for i in range(5)]
        for batch in batches:
            ended(client, batch)
        newest_first = [batch.id for batch in reversed(batches)]
        page = client.batches.list(limit=2)
        assert [batch.id for batch in page.data] == newest_first[:2] and page.has_more
        assert [batch.id for batch in client.batches.list(limit=2)] == newest_first, "the client fetches all pages"
        files = [file.id for file in client.files.list(purpose="batch", limit=2)]
        assert files == [batch.input_file_id for batch in reversed(batches)]
        assert [file.id for file in client.files.list(purpose="batch", order="asc")] == files[::-1]
        assert len(client.files.list().data) == 10
        for field, value in (("limit", 0), ("limit", "many"), ("order", "up")):
            with pytest.raises(openai.BadRequestError, match=field):
                client.files.list(extra_query={field: value})


def test_files_and_batches_are_the_keys(tmp_path: Path) -> None:
    with batch_server(tmp_path, keys=("alice=one", "bob=two", "alice=three")) as alice:
        bob, also_alice = client_of(str(alice.base_url)[:-4], "two"), client_of(str(alice.base_url)[:-4], "three")
        batch = ended(alice, begin(alice, lines("secret")))
        assert also_alice.batches.retrieve(batch.id).id == batch.id
        assert not bob.batches.list().data and not bob.files.list().data
        for ask in (
            lambda: bob.batches.retrieve(batch.id),
            lambda: bob.batches.cancel(batch.id),
            lambda: bob.files.retrieve(batch.input_file_id),
            lambda: bob.files.content(batch.output_file_id),
            lambda: bob.files.delete(batch.output_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                ask()
        with pytest.raises(openai.BadRequestError, match="No such File"):
            bob.batches.create(input_file_id=batch.input_file_id, endpoint="/v1/completions", completion_window="24h")
        with pytest.raises(openai.AuthenticationError):
            client_of(str(alice.base_url)[:-4], "four").files.list()
