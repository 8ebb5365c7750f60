"""The Saxml dialect in both of its generations: the calls of each, and answers with the keys of both.

    curl --request POST --header "Content-type: application/json" -s localhost:8000/publish --data \\
        '{"model": "/sax/test/spmd", "model_path": "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test",
          "checkpoint": "None", "replicas": 2}'

The first generation's GETs carry a JSON body; a query string works as well. /cell, /watch, /acl, /create and /score,
which `clients/saxutil.py` uses, are additions.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from apps.cell import calls
from apps.cell.calls import Entry
from apps.cell.errors import CellError
from apps.cell.http.dispatcher import Dispatcher, Front, streamed
from apps.cell.names import check_cell, model_name
from apps.serving.ingress.api_keys import principal_of
from apps.serving.ingress.bodies import BodyTooLarge
from apps.serving.ingress.dialects.saxml_answers import SaxmlJSON
from apps.serving.ingress.event_stream import EventStream
from apps.serving.ingress.json_body import BadJSON, parsed_object, read_json
from apps.serving.ingress.open_requests import stopping
from apps.serving.ingress.openapi import STREAMED, json_object, query

WATCH_S = 0.5
OF_A_MODEL = json_object(calls.OF_A_MODEL, closed=False)
EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def saxml_router(cell: str, front: Front, dispatcher: Dispatcher) -> APIRouter:
    """The dialect's routes."""
    router = APIRouter()

    @router.get("/")
    async def root() -> Response:
        """A greeting."""
        return SaxmlJSON({"message": "HTTP Server for SAX Client"})

    _add_models(router, cell, front)
    _add_cell(router, front, dispatcher)
    _add_methods(router, cell, dispatcher)
    return router


def _add_models(router: APIRouter, cell: str, front: Front) -> None:
    """What publishes, changes, removes and lists models."""

    @router.post("/publish", openapi_extra=json_object(calls.PUBLISH, ["model", "model_path"]))
    async def publish(request: Request) -> Response:
        """Adds a model to the desired state. Answered once that is stored, before the model is loaded."""
        return _echo(await front.ask(calls.Publish(await _body(request), principal_of(request.scope))))

    @router.put("/update", openapi_extra=json_object(calls.UPDATE, ["model"]))
    async def update(request: Request) -> Response:
        """Changes a published model's checkpoint, replicas or overrides; absent fields stay as they are."""
        return _echo(await front.ask(calls.Update(await _body(request), principal_of(request.scope))))

    @router.post("/unpublish", openapi_extra=json_object(calls.ONE_MODEL, ["model"]))
    async def unpublish(request: Request) -> Response:
        """Removes a model; its replicas finish their open requests."""
        entry = await front.ask(calls.Unpublish(await _body(request), principal_of(request.scope)))
        return SaxmlJSON({"model": entry["model"]})

    @router.get("/listcell", openapi_extra=query(calls.ONE_MODEL, ["model"]))
    async def list_model(request: Request) -> Response:
        """One model, despite the name: its state, replicas and, if it does not load, the reason."""
        body = await _arguments(request)
        if "model" not in body:
            raise CellError("Provide model for list cell")
        name = model_name(body["model"], cell)
        return SaxmlJSON((await front.ask(calls.ListModels({"model": name})))[0])

    @router.get("/listall", openapi_extra=query(calls.ONE_CELL))
    async def list_all(request: Request) -> Response:
        """Names of the published models."""
        check_cell((await _arguments(request)).get("sax_cell", f"/sax/{cell}"), cell)
        listed = await front.ask(calls.ListModels({}))
        return SaxmlJSON([entry["model"] for entry in listed])


def _add_cell(router: APIRouter, front: Front, dispatcher: Dispatcher) -> None:
    """The cell as a whole: its state, events of it, and who may do what."""

    @router.get("/cell")
    async def whole_cell(request: Request) -> Response:
        """The cell: its slices, the caller's principal, and all models as in `listcell`."""
        view = dispatcher.view()
        models = await front.ask(calls.ListModels({}))
        return SaxmlJSON(view.cell | {"principal": principal_of(request.scope), "models": models})

    @router.get("/watch", openapi_extra=query(calls.ONE_MODEL), responses=EVENTS)
    async def watch(request: Request) -> Response:
        """Server-sent events: the published models, then each change of them."""
        wanted = (await _arguments(request)).get("model")
        if wanted is not None:
            wanted = await dispatcher.full_name(wanted)
        return await EventStream(_changes(dispatcher, wanted, request.scope)).begun()

    @router.post("/create", openapi_extra=json_object(calls.CREATE, ["sax_cell"]))
    async def create(request: Request) -> Response:
        """Sets the cell's admin ACL, if no other principal has; the cell itself exists already."""
        return SaxmlJSON(await front.ask(calls.Create(await _body(request), principal_of(request.scope))))

    @router.put("/acl", openapi_extra=json_object(calls.SET_ACL, ["acl"]))
    async def set_acl(request: Request) -> Response:
        """Sets who may change the cell or a model, or call one of a model's methods."""
        return SaxmlJSON(await front.ask(calls.SetAcl(await _body(request), principal_of(request.scope))))

    @router.get("/acl", openapi_extra=query(calls.GET_ACL))
    async def get_acl(request: Request) -> Response:
        """Who may change the cell or a model, or call a model's methods."""
        return SaxmlJSON(await front.ask(calls.GetAcl(await _arguments(request))))


def _add_methods(router: APIRouter, cell: str, dispatcher: Dispatcher) -> None:
    """What a published model answers."""

    @router.post("/generate", openapi_extra=OF_A_MODEL, responses=STREAMED)
    async def generate(request: Request) -> Response:
        """Answered by the published model; Saxml's body or JetStream's."""
        body = await _body(request)
        return await _call(request, body, "lm.generate_stream" if streamed(body) else "lm.generate", "/generate")

    @router.post("/score", openapi_extra=OF_A_MODEL)
    async def score(request: Request) -> Response:
        """Answered by the published model: log probabilities of suffixes."""
        return await _call(request, await _body(request), "lm.score", "/score")

    async def _call(request: Request, body: dict[str, Any], method: str, path: str) -> Response:
        model = body.get("model")
        if model is not None and not isinstance(model, str):
            raise CellError(f"model {model!r} must be a string such as /sax/{cell}/NAME")
        name = await dispatcher.full_name(model)
        if "model" in body or path == "/score" or "query" in body:
            body = body | {"model": name}
        return await dispatcher.call(request, name, method, path, json.dumps(body).encode())


def _echo(entry: Entry) -> Response:
    """`path` is the first generation's key, `model_path` the second's."""
    return SaxmlJSON(
        {
            "model": entry["model"],
            "path": entry["model_path"],
            "model_path": entry["model_path"],
            "checkpoint": entry["checkpoint"],
            "replicas": entry["max_replicas"],
        }
    )


async def _body(request: Request) -> dict[str, Any]:
    try:
        return parsed_object(await read_json(request) or b"{}")
    except BodyTooLarge as error:
        too_large = CellError(str(error))
        too_large.status = 413
        raise too_large from error
    except BadJSON as error:
        raise CellError(str(error)) from error


async def _arguments(request: Request) -> dict[str, Any]:
    """A GET's JSON body if it has one, else its query string."""
    return await _body(request) or dict(request.query_params)


async def _changes(dispatcher: Dispatcher, wanted: str | None, scope: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
    """Events of all models, or of `wanted` until it is gone. Comments in between keep the connection alive.

    It ends when the server stops, which would otherwise wait for it.
    """
    told: dict[str, Entry] = {}
    while not stopping(scope):
        now = {name: entry for name, entry in dispatcher.view().entries.items() if wanted in (None, name)}
        events: list[Mapping[str, Any]] = [entry for name, entry in now.items() if told.get(name) != entry]
        events += [{"model": name, "state": "GONE"} for name in told if name not in now]
        told = now
        yield "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() or b": alive\n\n"
        if wanted is not None and not now:
            return
        await asyncio.sleep(WATCH_S)
