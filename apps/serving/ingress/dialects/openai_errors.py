"""Errors in OpenAI's format: a status, and {"error": {message, type, param, code}}."""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from apps.serving.errors import EngineError, shortened
from apps.serving.ingress.bodies import BodyRefused, BodyTooLarge
from apps.serving.ingress.json_body import BadJSON, read_json, validated

log = logging.getLogger("podslice")

B = TypeVar("B", bound=BaseModel)

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class OpenAIError(Exception):
    """An error that is sent to the client unchanged."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ):
        message = shortened(message)
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.param = None if param is None else shortened(param, 200)
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = retry_after(self.retry_after_s)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)

    def event(self) -> bytes:
        """The error as the last server-sent event of a stream."""
        return b"data: " + json.dumps(self.body()).encode() + b"\n\n"


class QuotaExceeded(OpenAIError):
    """The key has used up what it may keep; in the words of OpenAI, whose clients would otherwise try again."""

    def __init__(self, what: str):
        super().__init__(429, f"You exceeded your current quota: {what}", None, "insufficient_quota")

    def body(self) -> dict[str, Any]:
        return {"error": super().body()["error"] | {"type": "insufficient_quota"}}

    def response(self) -> Response:
        answer = super().response()
        answer.headers["x-should-retry"] = "false"
        return answer


def retry_after(seconds: float | None) -> dict[str, str]:
    """The Retry-After header, in whole seconds; empty for None."""
    return {} if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}


async def parsed(kind: type[B], request: Request, unions: Mapping[str, str] | None = None) -> B:
    """The request's body, read and checked. Raises OpenAIError; for `unions` see `from_body`."""
    try:
        return validated(kind, await read_json(request))
    except (ValidationError, BodyTooLarge, BadJSON) as error:
        raise from_body(error, unions) from None


def from_engine(error: EngineError, names: Mapping[str, str] | None = None) -> OpenAIError:
    """The HTTP form of an engine's error. `names`: the engine's field -> the client's name of it."""
    message, field = error.says.format(error), error.field
    if field is not None and (name := (names or {}).get(field)):
        if message.startswith((f"{field} ", f"{field}:")):
            message = name + message.removeprefix(field)
        field = name
    return OpenAIError(error.status, message, field, error.code, error.retry_after_s)


@contextmanager
def refusing(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """What an engine raises in the block is raised as `from_engine` puts it."""
    try:
        yield
    except EngineError as error:
        raise from_engine(error, names) from error


def of_stream(error: Exception, names: Mapping[str, str] | None = None) -> OpenAIError:
    """The error that ends a stream which fails after it has begun."""
    if isinstance(error, EngineError):
        return from_engine(error, names)
    log.error("a stream failed", exc_info=error)
    return OpenAIError(500, "The server failed while it streamed the answer.", None, "internal_error")


def from_unread(error: BodyRefused) -> OpenAIError:
    """The OpenAI form of a body that was not read to its end."""
    return OpenAIError(error.status, str(error), None, error.code, error.retry_after_s)


def from_body(error: ValidationError | BodyTooLarge | BadJSON, unions: Mapping[str, str] | None = None) -> OpenAIError:
    """The OpenAI form of an invalid body, naming the first bad field.

    `unions`: the message for a field that allows several types, instead of one error for each type.
    """
    if isinstance(error, BodyTooLarge):
        return OpenAIError(413, str(error), None, "request_too_large")
    if isinstance(error, BadJSON):
        return OpenAIError(400, str(error), error.field, error.code)
    # A field that allows several types yields one error for each: the deepest one is the most specific.
    detail = max(error.errors(include_url=False, include_context=False), key=lambda e: len(e["loc"]))
    param = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            param += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool", "none"):  # else a union's branch
            param += f".{part}" if param else part
    field = detail["loc"][0] if detail["loc"] else ""
    if not param:
        return OpenAIError(400, "The body of the request must be a JSON object.", None, "invalid_type")
    if unions and isinstance(field, str) and field in unions and detail["type"] != "value_error":
        return OpenAIError(400, unions[field], field, "invalid_type")
    message = detail["msg"].removeprefix("Value error, ")
    code = "missing_required_parameter" if detail["type"] == "missing" else "invalid_value"
    return OpenAIError(400, f"{param}: {message}", param, code)
