"""/v1/files and /v1/batches. Each API key sees only the files and batches that it created."""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar

from fastapi import APIRouter, Request
from pydantic import field_validator
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from apps.llm.batch_api.files.storage import FILE, new_id, refusal
from apps.llm.batch_api.files.stored_files import Files
from apps.llm.batch_api.files.upload import FORM_BYTES, Form, check_length, declared, opened_in_thread, too_large
from apps.llm.batch_api.records import BatchStore, Records
from apps.serving.ingress.api_keys import DEFAULT_PRINCIPAL, principal_of
from apps.serving.ingress.bodies import BODIES, ArrivingBody, Body, BodyRefused, Metadata, check_encoding, in_pieces
from apps.serving.ingress.dialects.openai_errors import OpenAIError, parsed
from apps.serving.ingress.openapi import Schema, form, json_body, query

log = logging.getLogger("podslice")

P = ParamSpec("P")
T = TypeVar("T")

MAX_FILES, MAX_BATCHES, DEFAULT_BATCHES = 10_000, 100, 20
"""Items on one page of a listing: the most files, the most batches, and the default for batches."""
COUNT_BYTES = 32 * 2**20
"""Bytes of an upload after which its key's files are counted again."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_WINDOW_S = 30 * SECONDS["d"]
OFF = (
    "This server keeps no files: set `batches` in its config to a folder or bucket, such as batches=gs://bucket/batches"
)
FILES_QUERY: dict[str, Schema] = {
    "purpose": {"type": "string"},
    "limit": {"type": "integer", "maximum": MAX_FILES},
    "after": {"type": "string"},
    "order": {"enum": ["asc", "desc"], "type": "string"},
}
BATCHES_QUERY: dict[str, Schema] = {
    "limit": {"type": "integer", "maximum": MAX_BATCHES},
    "after": {"type": "string"},
}


class FileBody(Body):
    purpose: Literal["batch"]


class BatchBody(Body):
    input_file_id: str
    """Id of a file that this key uploaded with the purpose `batch`."""
    endpoint: str
    """Endpoint of every line: `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` or another of this server."""
    completion_window: str
    """Time until the batch expires, keeping the answers that it has: `24h`, or any number of `s`, `m`, `h` or `d` up
    to 30 days."""
    metadata: Metadata | None = None
    output_expires_after: Any = None
    """Not supported: files stay until they are deleted."""

    @field_validator("completion_window")
    @classmethod
    def _is_duration(cls, value: str) -> str:
        if not 0 < window_s(value) <= MAX_WINDOW_S:
            raise ValueError("must be 24h, or another number of s, m, h or d up to 30d")
        return value

    @field_validator("output_expires_after")
    @classmethod
    def _is_absent(cls, value: Any) -> Any:
        if value is not None:
            raise ValueError("files here stay until they are deleted; leave it out")
        return value


def window_s(text: str) -> int:
    """A completion window in seconds; 0 if the text is not one."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    return int(match[1]) * SECONDS[match[2]] if match else 0


async def stored(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Runs a storage call in a thread. Raises OpenAIError, also for the storage's own errors."""
    try:
        return await asyncio.to_thread(call, *arguments, **named)
    except OpenAIError:
        raise
    except Exception as error:  # an object store's own errors have no type in common
        log.exception("the storage of files failed")
        raise refusal(error) from error


def batches_router(
    store: BatchStore | None, model: str, endpoints: Sequence[str], on_change: Callable[[], None]
) -> APIRouter:
    """The routes.

    Args:
        store: None if the server has no storage; each route then answers 404.
        model: name of the model that answers batches created here.
        endpoints: the endpoints that a batch may use.
        on_change: called after a batch is created or its cancellation is requested.
    """
    router = APIRouter()

    def required() -> BatchStore:
        if store is None:
            raise OpenAIError(404, f"{OFF}.", None, "batches_off")
        return store

    _add_files(router, required)
    _add_batches(router, required, model, endpoints, on_change)
    return router


def _add_files(router: APIRouter, required: Callable[[], BatchStore]) -> None:
    @router.post("/v1/files", openapi_extra=form(FileBody, ("file",), ("file",)))
    async def upload(request: Request) -> Any:
        """Uploads a file for a batch."""
        return await _uploaded(required(), request)

    @router.get("/v1/files", openapi_extra=query(FILES_QUERY))
    async def list_files(request: Request) -> Any:
        """Lists the key's files, newest first."""
        return await _page(request, required().files, MAX_FILES, MAX_FILES, request.query_params.get("purpose"))

    @router.get("/v1/files/{id}")
    async def get_file(request: Request, id: str) -> Any:
        """A file's metadata."""
        return await stored(required().files.get, _owner(request), id)

    @router.get("/v1/files/{id}/content")
    async def content(request: Request, id: str) -> Response:
        """A file's content."""
        store, owner = required(), _owner(request)
        about = await stored(store.files.checked, owner, id)
        headers = {"Content-Length": str(about["bytes"])}
        return StreamingResponse(store.files.pieces(owner, id), 200, headers, "application/octet-stream")

    @router.delete("/v1/files/{id}")
    async def delete(request: Request, id: str) -> Any:
        """Deletes a file, unless an unfinished batch reads it."""
        store, owner = required(), _owner(request)
        for opened in await stored(store.records.open):
            if opened.owner == owner:
                batch, _ = await stored(store.records.read, opened)
                if isinstance(batch, dict) and batch["input_file_id"] == id:
                    message = f"{id} is the input of {opened.id}, which has not ended; cancel that batch first"
                    raise OpenAIError(409, message, "id", "file_in_use")
        await stored(store.files.delete, owner, id)
        return {"id": id, "object": "file", "deleted": True}


def _add_batches(
    router: APIRouter,
    required: Callable[[], BatchStore],
    model: str,
    endpoints: Sequence[str],
    on_change: Callable[[], None],
) -> None:
    @router.post("/v1/batches", openapi_extra=json_body(BatchBody))
    async def create(request: Request) -> Any:
        """Creates a batch: each line of the file is answered in the engine's idle capacity."""
        store, owner = required(), _owner(request)
        body = await parsed(BatchBody, request)
        if body.endpoint not in endpoints:
            message = f"endpoint: must be one of {', '.join(endpoints)}, not {body.endpoint!r}"
            raise OpenAIError(400, message, "endpoint", "invalid_value")
        try:
            about = await stored(store.files.get, owner, body.input_file_id)
        except OpenAIError as error:
            status = 400 if error.status == 404 else error.status
            raise OpenAIError(status, error.message, "input_file_id", error.code) from None
        if about["purpose"] != "batch":
            message = f"input_file_id: the file's purpose is {about['purpose']!r}, and must be 'batch'"
            raise OpenAIError(400, message, "input_file_id", "invalid_value")
        asked = body.model_dump(exclude={"output_expires_after"})
        await stored(store.room, owner)
        window, most = window_s(body.completion_window), store.limits.key_open
        batch = await stored(store.records.add, owner, model, asked, window, most)
        on_change()
        return batch

    @router.get("/v1/batches", openapi_extra=query(BATCHES_QUERY))
    async def list_batches(request: Request) -> Any:
        """Lists the key's batches, newest first."""
        return await _page(request, required().records, DEFAULT_BATCHES, MAX_BATCHES)

    @router.get("/v1/batches/{id}")
    async def get_batch(request: Request, id: str) -> Any:
        """A batch's status and progress."""
        return await stored(required().records.get, _owner(request), id)

    @router.post("/v1/batches/{id}/cancel")
    async def cancel(request: Request, id: str) -> Any:
        """Cancels a batch; the answers it has so far become its output."""
        batch = await stored(required().records.cancel, _owner(request), id)
        on_change()
        return batch


def _owner(request: Request) -> str:
    principal = principal_of(request.scope) or DEFAULT_PRINCIPAL
    return principal.replace("/", "~")  # a cell's front has a slash in its name, which a path would split


async def _uploaded(store: BatchStore, request: Request) -> dict[str, Any]:
    check_encoding(request.headers)
    most, owner, id_ = store.limits.file_bytes, _owner(request), new_id(FILE)
    reading, arriving, more = Form(request.headers.get("content-type", "")), ArrivingBody(BODIES), True
    check_length(request.headers, most)
    room = await stored(store.room, owner)
    if declared(request.headers) > room + FORM_BYTES:
        raise store.over_quota()
    received = size = counted = 0
    try:
        async with opened_in_thread(partial(store.files.writing, owner, id_)) as write:
            while more:
                data, more = await arriving.next(request.receive)
                received += len(data)
                async for part in in_pieces(data):
                    for piece in reading.feed(part):
                        await write(piece)
                        size += len(piece)
                if size > most or received > most + FORM_BYTES:
                    raise too_large(most)
                if size - counted > COUNT_BYTES:  # what else the key has meanwhile
                    room, counted = await stored(store.room, owner, id_), size
                if size > room:
                    raise store.over_quota()
            name = reading.finish()
            purpose = reading.fields.get("purpose", b"").decode("utf-8", "replace")
            if purpose != "batch":
                message = f"purpose: must be batch, not {purpose!r}"
                raise OpenAIError(400, message, "purpose", "invalid_value")
            if any(field.startswith("expires_after") for field in reading.fields):
                message = "expires_after: files here stay until they are deleted; leave it out"
                raise OpenAIError(400, message, "expires_after", "invalid_value")
    except (OpenAIError, BodyRefused):
        raise
    except ClientDisconnect:
        raise OpenAIError(400, "The client disconnected during the upload.", None, "client_left") from None
    except Exception as error:  # an object store's own errors have no type in common
        log.exception("an upload failed")
        raise refusal(error) from error
    return await stored(_added, store, owner, id_, size, name)


def _added(store: BatchStore, owner: str, id_: str, size: int, name: str) -> dict[str, Any]:
    """Adds the file whose content is written, if the key may have it."""
    try:
        if size > store.room(owner, id_):
            raise store.over_quota()
    except BaseException:
        store.files.discard(owner, id_)
        raise
    return store.files.add(owner, id_, size, name, "batch")


async def _page(
    request: Request, listed: Files | Records, usual: int, most: int, purpose: str | None = None
) -> dict[str, Any]:
    """One page of a listing, with OpenAI's `limit`, `order` and `after`.

    Args:
        usual, most: default and maximum of `limit`.
        purpose: lists only files with this purpose.
    """
    given, owner = request.query_params, _owner(request)
    limit, order, after = given.get("limit", str(usual)), given.get("order", "desc"), given.get("after")
    if not re.fullmatch("[0-9]{1,9}", limit) or not 1 <= int(limit) <= most:
        raise OpenAIError(400, f"limit: must be a number from 1 to {most:,}", "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise OpenAIError(400, "order: must be asc or desc", "order", "invalid_value")
    left = await stored(listed.newest_first, owner)
    if order == "asc":
        left.reverse()
    if after is not None:
        left = [id_ for id_ in left if (id_ < after if order == "desc" else id_ > after)]
    found: list[dict[str, Any]] = []
    wanted = int(limit) + 1  # one more, to know whether there is a next page
    while left and len(found) < wanted:
        some, left = left[:wanted], left[wanted:]
        for one in await stored(listed.several, owner, some):
            if one is not None and (not purpose or one["purpose"] == purpose):
                found.append(one)
    data = found[: int(limit)]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"object": "list", "data": data, **ends, "has_more": len(found) > len(data)}
