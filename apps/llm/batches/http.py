"""/v1/files and /v1/batches. Files and batches are the API key's that made them: others' are not there for it."""

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

from apps.llm.batches.records import Kept
from apps.llm.batches.storage import FILE, new_id, refusal
from apps.llm.batches.upload import FORM_BYTES, FileWriter, Form, check_length, too_large
from apps.serving.ingress.api_keys import DEFAULT_PRINCIPAL, SCOPE_PRINCIPAL
from apps.serving.ingress.bodies import Body, Metadata
from apps.serving.ingress.openai_errors import OpenAIError, parsed
from apps.serving.ingress.openapi import form, json_body, query

log = logging.getLogger("podslice")

P = ParamSpec("P")
T = TypeVar("T")

MOST_FILES, MOST_BATCHES, FEW_BATCHES = 10_000, 100, 20
"""In one listing at most, and where the client does not say how many."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MOST_WINDOW_S = 30 * SECONDS["d"]
OFF = (
    "This server keeps no files: set `batches` in its config to a folder or bucket, such as batches=gs://bucket/batches"
)


class FileBody(Body):
    purpose: Literal["batch"]


class BatchBody(Body):
    input_file_id: str
    """A file of this key's with the purpose `batch`."""
    endpoint: str
    """What every line asks: `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` or another of this server's."""
    completion_window: str
    """After it the batch expires, with the answers that it has by then: `24h`, or any number of `s`, `m`, `h` or `d`
    up to 30 days."""
    metadata: Metadata | None = None
    output_expires_after: Any = None
    """Not supported: files stay until they are deleted."""

    @field_validator("completion_window")
    @classmethod
    def _a_time(cls, value: str) -> str:
        if not 0 < window_s(value) <= MOST_WINDOW_S:
            raise ValueError("must be 24h, or another number of s, m, h or d up to 30d")
        return value

    @field_validator("output_expires_after")
    @classmethod
    def _stays(cls, value: Any) -> Any:
        if value is not None:
            raise ValueError("files here stay until they are deleted; leave it out")
        return value


def window_s(text: str) -> int:
    """Seconds of a completion window; 0 if it is none."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    return int(match[1]) * SECONDS[match[2]] if match else 0


async def stored(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """The call's result, from a thread. Raises OpenAIError, whatever the storage raises."""
    try:
        return await asyncio.to_thread(call, *arguments, **named)
    except OpenAIError:
        raise
    except Exception as error:  # an object store's own errors have no type in common
        log.exception("the storage of files failed")
        raise refusal(error) from error


def batches_router(kept: Kept | None, model: str, endpoints: Sequence[str], made: Callable[[], None]) -> APIRouter:
    """The routes.

    Args:
        kept: None: the server has no storage, and says so.
        model: the name of the model that answers the batches made here.
        endpoints: what a batch may ask.
        made: called after a batch was made or is to be cancelled.
    """
    router = APIRouter()

    def on() -> Kept:
        if kept is None:
            raise OpenAIError(404, f"{OFF}.", None, "batches_off")
        return kept

    @router.post("/v1/files", openapi_extra=form(FileBody, ("file",), ("file",)))
    async def upload(request: Request) -> Any:
        """Keeps a file, for a batch."""
        return await _uploaded(on(), request)

    listing = {"after": {"type": "string"}, "order": {"enum": ["asc", "desc"], "type": "string"}}
    files_query = {"purpose": {"type": "string"}, "limit": {"type": "integer", "maximum": MOST_FILES}, **listing}

    @router.get("/v1/files", openapi_extra=query(files_query))
    async def list_files(request: Request) -> Any:
        """The key's files, the newest first."""
        kept, owner, purpose = on(), _owner(request), request.query_params.get("purpose")
        find = partial(kept.files.several, owner)
        ids = partial(kept.files.newest_first, owner)
        return await _page(request, ids, find, MOST_FILES, MOST_FILES, {"purpose": purpose} if purpose else {})

    @router.get("/v1/files/{id}")
    async def get_file(request: Request, id: str) -> Any:
        """What is known of a file."""
        return await stored(on().files.get, _owner(request), id)

    @router.get("/v1/files/{id}/content")
    async def content(request: Request, id: str) -> Response:
        """What is in a file."""
        kept, owner = on(), _owner(request)
        about = await stored(kept.files.get, owner, id)
        headers = {"Content-Length": str(about["bytes"])}
        return StreamingResponse(kept.files.pieces(owner, id), 200, headers, "application/octet-stream")

    @router.delete("/v1/files/{id}")
    async def delete(request: Request, id: str) -> Any:
        """Deletes a file; not one that a batch still reads."""
        kept, owner = on(), _owner(request)
        for opened in await stored(kept.records.open):
            if opened.owner == owner:
                batch, _ = await stored(kept.records.read, opened)
                if batch is not None and batch["input_file_id"] == id:
                    message = f"{id} is read by {opened.id}, which has not ended; cancel that first"
                    raise OpenAIError(409, message, "id", "file_in_use")
        await stored(kept.files.delete, owner, id)
        return {"id": id, "object": "file", "deleted": True}

    @router.post("/v1/batches", openapi_extra=json_body(BatchBody))
    async def create(request: Request) -> Any:
        """Answers each line of a file in the engine's idle places."""
        kept, owner = on(), _owner(request)
        body = await parsed(BatchBody, request)
        if body.endpoint not in endpoints:
            message = f"endpoint: must be one of {', '.join(endpoints)}, not {body.endpoint!r}"
            raise OpenAIError(400, message, "endpoint", "invalid_value")
        try:
            about = await stored(kept.files.get, owner, body.input_file_id)
        except OpenAIError as error:
            status = 400 if error.status == 404 else error.status
            raise OpenAIError(status, error.message, "input_file_id", error.code) from None
        if about["purpose"] != "batch":
            message = f"input_file_id: the file's purpose is {about['purpose']!r}, and must be 'batch'"
            raise OpenAIError(400, message, "input_file_id", "invalid_value")
        asked = body.model_dump(exclude={"output_expires_after"})
        batch = await stored(kept.records.add, owner, model, asked, window_s(body.completion_window))
        made()
        return batch

    batches_query = {"limit": {"type": "integer", "maximum": MOST_BATCHES}, "after": {"type": "string"}}

    @router.get("/v1/batches", openapi_extra=query(batches_query))
    async def list_batches(request: Request) -> Any:
        """The key's batches, the newest first."""
        kept, owner = on(), _owner(request)
        find = partial(kept.records.several, owner)
        return await _page(request, partial(kept.records.newest_first, owner), find, FEW_BATCHES, MOST_BATCHES)

    @router.get("/v1/batches/{id}")
    async def get_batch(request: Request, id: str) -> Any:
        """How far a batch is."""
        return await stored(on().records.get, _owner(request), id)

    @router.post("/v1/batches/{id}/cancel")
    async def cancel(request: Request, id: str) -> Any:
        """Stops a batch; the answers that it has become its output."""
        batch = await stored(on().records.cancel, _owner(request), id)
        made()
        return batch

    return router


def _owner(request: Request) -> str:
    principal: str = request.scope.get(SCOPE_PRINCIPAL, DEFAULT_PRINCIPAL)
    return principal.replace("/", "~")  # a cell's front has a slash in its name; in a path it would be a folder


async def _uploaded(kept: Kept, request: Request) -> dict[str, Any]:
    most, owner, id_ = kept.limits.file_bytes, _owner(request), new_id(FILE)
    reading = Form(request.headers.get("content-type", ""))
    check_length(request.headers, most)
    size = 0
    try:
        async with FileWriter.to(partial(kept.files.writing, owner, id_)) as writer:
            async for data in request.stream():
                size += len(data)
                for piece in reading.feed(data):
                    await writer.write(piece)
                if writer.size > most or size > most + FORM_BYTES:
                    raise too_large(most)
            name = reading.finish()
            purpose = reading.fields.get("purpose")
            if purpose != "batch":
                message = f"purpose: must be batch, not {purpose!r}"
                raise OpenAIError(400, message, "purpose", "invalid_value")
            if any(field.startswith("expires_after") for field in reading.fields):
                message = "expires_after: files here stay until they are deleted; leave it out"
                raise OpenAIError(400, message, "expires_after", "invalid_value")
    except OpenAIError:
        raise
    except ClientDisconnect:
        raise OpenAIError(400, "The client left before the file was whole.", None, "client_left") from None
    except Exception as error:  # an object store's own errors have no type in common
        log.exception("an upload failed")
        raise refusal(error) from error
    return await stored(kept.files.add, owner, id_, writer.size, name, purpose)


async def _page(
    request: Request,
    ids: Callable[[], list[str]],
    find: Callable[[list[str]], Sequence[dict[str, Any] | None]],
    usual: int,
    most: int,
    only: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A part of a list, as OpenAI's clients turn its pages.

    Args:
        ids: of all, the newest first.
        find: what is known of some of them.
        usual, most: how many at once, unless the client says; at most.
        only: fields that those which are listed have.
    """
    given = request.query_params
    limit, order, after = given.get("limit", str(usual)), given.get("order", "desc"), given.get("after")
    if not re.fullmatch("[0-9]{1,9}", limit) or not 1 <= int(limit) <= most:
        raise OpenAIError(400, f"limit: must be a number from 1 to {most:,}", "limit", "invalid_value")
    if order not in ("asc", "desc"):
        raise OpenAIError(400, "order: must be asc or desc", "order", "invalid_value")
    left = await stored(ids)
    if order == "asc":
        left.reverse()
    if after is not None:
        left = [id_ for id_ in left if (id_ < after if order == "desc" else id_ > after)]
    found: list[dict[str, Any]] = []
    wanted = int(limit) + 1  # one more: whether there is one
    while left and len(found) < wanted:
        some, left = left[:wanted], left[wanted:]
        for one in await stored(find, some):
            if one is not None and all(one[field] == value for field, value in (only or {}).items()):
                found.append(one)
    data = found[: int(limit)]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return {"object": "list", "data": data, **ends, "has_more": len(found) > len(data)}
