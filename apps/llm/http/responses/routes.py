"""OpenAI's Responses API: /v1/responses, and access to stored responses."""

import json
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from apps.llm.http.adapters import named
from apps.llm.http.answering import answered
from apps.llm.http.responses.answers import ResponseWriter
from apps.llm.http.responses.items import ITEMS
from apps.llm.http.responses.requests import NAMES, UNIONS, ResponseBody
from apps.llm.http.responses.store import ResponseStore, StoredResponse
from apps.llm.served.text_model import TextModel
from apps.serving.ingress.api_keys import principal_of
from apps.serving.ingress.dialects.openai_errors import OpenAIError, from_body, parsed, refusing
from apps.serving.ingress.openapi import STREAMED, json_body, query

PATH = "/v1/responses"
ONE = PATH + "/{response_id}"
NOTHING_STORED = "this server stores no responses (stored_responses is 0); send the whole conversation as input"


class Page(BaseModel):
    """The page of a listing that is requested, in a query, whose numbers are text."""

    model_config = ConfigDict(extra="ignore")

    after: str | None = None
    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"


def responses_router(model: TextModel, store: ResponseStore) -> APIRouter:
    """The dialect's routes over this model."""
    router = APIRouter()

    @router.post(PATH, openapi_extra=json_body(ResponseBody), responses=STREAMED)
    async def create(request: Request) -> Response:
        """OpenAI's responses. The model's own chat template makes the prompt."""
        body = await parsed(ResponseBody, request, UNIONS)
        served = named(model, body.model)
        owner = principal_of(request.scope)
        if body.store and not store.most:
            raise OpenAIError(400, f"store must be false: {NOTHING_STORED}", "store", "invalid_value")
        before = _earlier(store, body.previous_response_id, owner)
        earlier = ITEMS.validate_python(before)
        stored = bool(store.most) and body.store is not False

        def keep(writer: ResponseWriter) -> None:
            if stored:
                items = before + [item.stored() for item in body.items()]
                store.put(writer.id, StoredResponse(owner, _json(writer.whole()), _json(items)))

        with refusing(NAMES):
            prompt, turn = await served.texts.chat(body.request(earlier))
            stream = await served.submit(turn.constrained(body.params(served.sampling_defaults)), prompt)
            about = body.repeated(served.sampling_defaults) | {"store": stored}
            writer = ResponseWriter(served.name, about, stream, turn.reader(), body.functions(), keep)
            return await answered(stream, writer, bool(body.stream), served.texts)

    @router.get(ONE)
    async def retrieve(response_id: str, request: Request) -> Response:
        """A stored response."""
        if request.query_params.get("stream", "").lower() in ("true", "1"):
            raise OpenAIError(400, "stream: a stored response cannot be streamed", "stream", "invalid_value")
        return Response(_found(store, response_id, request).response, media_type="application/json")

    @router.delete(ONE)
    async def delete(response_id: str, request: Request) -> Any:
        """Deletes a stored response. Responses that continue it stay."""
        _found(store, response_id, request)
        store.delete(response_id, principal_of(request.scope))
        return {"id": response_id, "object": "response", "deleted": True}

    @router.get(f"{ONE}/input_items", openapi_extra=query(Page.model_json_schema()["properties"]))
    async def input_items(response_id: str, request: Request) -> Any:
        """The model's input for a stored response: the items of earlier turns, then those of its own input."""
        items = json.loads(_found(store, response_id, request).items)
        try:
            page = Page.model_validate_strings(dict(request.query_params))
        except ValidationError as error:
            raise from_body(error) from None
        return _listed(items, page)

    return router


def _earlier(store: ResponseStore, response_id: str | None, owner: str | None) -> list[dict[str, Any]]:
    """The conversation that a request continues. Raises OpenAIError."""
    if response_id is None:
        return []
    field = "previous_response_id"
    if not store.most:
        raise OpenAIError(400, f"{field} cannot be given: {NOTHING_STORED}", field, "invalid_value")
    stored = store.get(response_id, owner)
    if stored is None:
        raise OpenAIError(400, f"{field}: {_missing(store, response_id)}", field, "previous_response_not_found")
    return [*json.loads(stored.items), *json.loads(stored.response)["output"]]


def _found(store: ResponseStore, response_id: str, request: Request) -> StoredResponse:
    """The caller's stored response. Raises OpenAIError."""
    stored = store.get(response_id, principal_of(request.scope))
    if stored is None:
        raise OpenAIError(404, _missing(store, response_id), "response_id", "response_not_found")
    return stored


def _missing(store: ResponseStore, response_id: str) -> str:
    """The error message; the same for another caller's response as for one that does not exist."""
    if not store.most:
        return f"There is no response {response_id!r}: {NOTHING_STORED}."
    return (
        f"There is no response {response_id!r} here. Each replica keeps its last {store.most} in memory, for the API "
        "key that created them: it may be too old, deleted, on another replica or from before a restart."
    )


def _listed(items: list[dict[str, Any]], page: Page) -> dict[str, Any]:
    """A page of items. Raises OpenAIError if `after` is not one of them."""
    if page.order == "desc":
        items = items[::-1]
    if page.after is not None:
        place = next((i for i, item in enumerate(items) if item["id"] == page.after), None)
        if place is None:
            raise OpenAIError(400, f"after: no item has the id {page.after!r}", "after", "invalid_value")
        items = items[place + 1 :]
    data = items[: page.limit]
    ids = [item["id"] for item in data] or [None]
    ends = {"first_id": ids[0], "last_id": ids[-1], "has_more": len(items) > len(data)}
    return {"object": "list", "data": data, **ends}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
