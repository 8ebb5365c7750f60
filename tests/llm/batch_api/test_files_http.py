"""Uploads and downloads: forms of several clients, bad forms, full disks, disconnects."""

import asyncio
import contextlib
import resource
import signal
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from python_multipart.multipart import MultipartParser

from apps.llm.batch_api.records import Limits
from apps.serving.ingress.bodies import PIECE
from tests.llm.batch_api.serving import StandIn, app_of, batch_server, begin, ended, kept_in, lines

BOUNDARY = "----a-boundary"
HEADERS = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def form(*parts: tuple[str, str | None, bytes], end: str = "--\r\n") -> bytes:
    """A form's body of (name, filename, content)."""
    body = b""
    for name, filename, content in parts:
        named = f'; filename="{filename}"' if filename is not None else ""
        body += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode()
        body += content + b"\r\n"
    return body + f"--{BOUNDARY}{end}".encode()


PURPOSE = ("purpose", None, b"batch")
FILE = ("file", "in.jsonl", b'{"a": 1}\n')


def post(app: FastAPI, content: Any, headers: dict[str, str] = HEADERS) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.post("/v1/files", content=content, headers=headers)

    return asyncio.run(ask())


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_file(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000 + b"\r\n--" + BOUNDARY.encode()[:-1]
    with batch_server(tmp_path, limits=Limits(10 * 2**20, 10)) as client:
        file = client.files.create(file=("näme.jsonl", content), purpose="batch")
        assert (file.object, file.bytes, file.filename) == ("file", len(content), "näme.jsonl")
        assert (file.purpose, file.status) == ("batch", "processed")
        assert client.files.retrieve(file.id) == file == client.files.list().data[0]
        answer = client.files.content(file.id)
        assert answer.content == content and int(answer.response.headers["content-length"]) == len(content)
        assert client.files.delete(file.id).deleted
        for ask in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError, match="No such File"):
                ask(file.id)
    assert not left(tmp_path)


def test_forms(tmp_path: Path) -> None:
    app = app_of(kept_in(tmp_path), StandIn())
    assert post(app, form(FILE, PURPOSE)).json()["bytes"] == len(FILE[2]), "in either order"

    async def dribble() -> AsyncIterator[bytes]:
        for byte in form(PURPOSE, FILE):
            yield bytes([byte])

    assert post(app, dribble()).json()["filename"] == "in.jsonl", "however the body is split"
    kept = left(tmp_path)
    for content, said in (
        (form(FILE), "purpose: must be batch"),
        (form(FILE, ("purpose", None, b"fine-tune")), "purpose: must be batch, not 'fine-tune'"),
        (form(PURPOSE), "file: a file with a file name is required"),
        (form(PURPOSE, ("file", None, b"text")), "file: a file with a file name is required"),
        (form(PURPOSE, FILE, FILE), "file: upload exactly one"),
        (form(PURPOSE, ("other", "in.jsonl", b"")), "file: upload exactly one file, in the field file"),
        (form(PURPOSE, FILE, ("expires_after[anchor]", None, b"created_at")), "expires_after: files here stay"),
        (form(PURPOSE, FILE, ("note", None, b"x" * 2**17)), "note: larger than 64 KiB"),
        (form(*[PURPOSE] * 40, FILE), "more than 32 parts"),
        (form(PURPOSE, FILE, end=""), "ends before its last boundary"),
        (form(PURPOSE, FILE)[:-30], "ends before its last boundary"),
        (b"no form", "cannot be parsed"),
        (b"", "ends before"),
        (form(PURPOSE, FILE).replace(b'name="file"', b"nothing"), "a part has no name"),
    ):
        refused = post(app, content)
        assert refused.status_code == 400 and said in refused.json()["error"]["message"], refused.text
    for kind in ("application/json", "multipart/form-data", "", f"multipart/form-data; boundary={'x' * 300}"):
        assert post(app, form(PURPOSE, FILE), {"content-type": kind}).status_code == 400
    assert left(tmp_path) == kept, "a refusal leaves nothing"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    app = app_of(kept_in(tmp_path, Limits(1000, 10)), StandIn())
    assert post(app, form(PURPOSE, ("file", "f", b"x" * 1000))).status_code == 200
    kept = left(tmp_path)

    async def unsaid(pieces: int) -> AsyncIterator[bytes]:
        yield form(PURPOSE, FILE, end="")[: -len(BOUNDARY) - 4]
        for _ in range(pieces):
            yield b"x" * 500
        raise AssertionError("the rest is not read")

    for content in (unsaid(3), form(PURPOSE, ("file", "f", b"x" * 1001)), b"x" * 2**21):
        refused = post(app, content)
        assert refused.status_code == 413 and "larger than 1,000 bytes" in refused.json()["error"]["message"]
    assert left(tmp_path) == kept


def test_a_large_file_is_never_in_memory(tmp_path: Path) -> None:
    megabytes = 30
    app = app_of(kept_in(tmp_path, Limits(2**30, 10)), StandIn())

    async def pieces() -> AsyncIterator[bytes]:
        yield form(PURPOSE, ("file", "f", b""), end="")[: -len(BOUNDARY) - 4]
        for _ in range(megabytes * 16):
            yield b"x" * 2**16
        yield f"\r\n--{BOUNDARY}--\r\n".encode()

    tracemalloc.start()
    try:
        assert post(app, pieces()).json()["bytes"] == megabytes * 2**20
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()


def test_others_are_answered_while_a_body_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server in front hands on up to 32 MiB at once. Fields count too: nothing of them is written elsewhere."""
    happened: list[object] = []
    write = MultipartParser.write

    def parsing(self: MultipartParser, data: bytes) -> int:
        happened.append(data)
        return write(self, data)

    monkeypatch.setattr(MultipartParser, "write", parsing)
    content = bytes(range(256)) * (5 * 2**12)

    async def run() -> tuple[httpx.Response, bytes]:
        async def others() -> None:
            while True:
                happened.append("another")
                await asyncio.sleep(0)

        app = app_of(kept_in(tmp_path, Limits(10 * 2**20, 10)), StandIn())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            another = asyncio.create_task(others())
            body = form(PURPOSE, ("file", "f", content), *(("field", None, b"a" * 60_000) for _ in range(29)))
            reply = await client.post("/v1/files", content=body, headers=HEADERS)
            another.cancel()
            return reply, (await client.get(f"/v1/files/{reply.json()['id']}/content")).content

    reply, kept = asyncio.run(run())
    assert reply.json()["bytes"] == len(content) and kept == content
    pieces = [at for at, data in enumerate(happened) if data != "another"]
    assert len(pieces) > len(content) / PIECE
    for at in pieces:
        assert len(happened[at]) <= PIECE and happened[at - 1] == "another"  # type: ignore[arg-type]


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limits the size of files, to simulate a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk(tmp_path: Path) -> None:
    app = app_of(kept_in(tmp_path), StandIn())
    for size in (100_000, 10):  # no room for the content; no room for the metadata
        with files_of_at_most(size):
            refused = post(app, form(PURPOSE, ("file", "f", b"x" * 200_000 if size > 10 else b"x")))
        assert refused.status_code == 507 and refused.json()["error"]["code"] == "insufficient_storage"
        assert not left(tmp_path)


def test_answers_wait_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apps.llm.batch_api import parts, work

    monkeypatch.setattr(work, "STORAGE_PAUSE_S", 0.2)
    full, failed = parts.writing, 0

    def no_room(*arguments: Any, **named: Any) -> Any:
        nonlocal failed
        failed += 1
        if failed < 3:
            raise OSError(28, "No space left on device")
        return full(*arguments, **named)

    monkeypatch.setattr(parts, "writing", no_room)
    model = StandIn(may_answer=asyncio.Semaphore(8))
    with batch_server(tmp_path, model) as client:
        batch = begin(client, lines(*map(str, range(12))))
        while failed < 3:
            completed = client.batches.retrieve(batch.id).request_counts.completed
            assert completed == 0 or failed == 3, "answers count only once they are saved"
        for _ in range(4):
            model.may_answer.release()
        done = ended(client, batch)
    assert done.status == "completed" and done.request_counts.completed == 12 and set(model.asked.values()) == {1}


def test_a_client_that_leaves_in_mid_upload(tmp_path: Path) -> None:
    app = app_of(kept_in(tmp_path), StandIn())

    async def upload(leave: str) -> list[dict[str, Any]]:
        """The messages sent after the client has disconnected or the server has cancelled the call."""
        begun, sent = asyncio.Event(), []
        body = iter([form(PURPOSE, FILE, end="")[:-20], b"x" * 1000])

        async def receive() -> dict[str, Any]:
            if (piece := next(body, None)) is not None:
                return {"type": "http.request", "body": piece, "more_body": True}
            begun.set()
            if leave == "cancel":
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/files", "query_string": b"", "headers": headers}
        call = asyncio.create_task(app(scope, receive, send))
        await begun.wait()
        if leave == "cancel":
            assert left(tmp_path), "part of the file is written"
            call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return sent

    for leave in ("cancel", "disconnect"):
        sent = asyncio.run(upload(leave))
        assert not left(tmp_path)
        assert not any(message.get("status", 0) >= 500 for message in sent)


def test_a_file_that_a_batch_reads_stays(tmp_path: Path) -> None:
    with batch_server(tmp_path, StandIn(may_answer=asyncio.Semaphore(0))) as client:
        batch = begin(client, lines("a"))
        with pytest.raises(openai.ConflictError, match=batch.id):
            client.files.delete(batch.input_file_id)
        client.batches.cancel(batch.id)
        ended(client, batch)
        client.files.delete(batch.input_file_id)


def test_what_killed_uploads_left_is_removed(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    post(app_of(kept, StandIn()), form(PURPOSE, FILE))
    whole, folder = left(tmp_path), tmp_path / "keys/default/files"
    for name in (f"file-{'0' * 28}.jsonl", f"file-{'0' * 28}.jsonl.partial", f"file-{'f' * 28}.jsonl"):
        (folder / name).write_text("x")
    assert kept.files.tidy() == 2
    assert left(tmp_path) == sorted([*whole, f"file-{'f' * 28}.jsonl"]), "files that may still be in use stay"


def test_a_server_without_storage_says_so() -> None:
    app = app_of(None, StandIn())
    refused = post(app, form(PURPOSE, FILE))
    assert refused.status_code == 404 and "set `batches` in its config" in refused.json()["error"]["message"]


def test_a_place_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for uri, said in (("nosuch://x", "cannot be opened"), (f"{tmp_path}/file/below", "cannot be written: Not a dir")):
        with pytest.raises(ValueError, match=said) as refused:
            kept_in(uri)
        assert "batches=" in str(refused.value)
