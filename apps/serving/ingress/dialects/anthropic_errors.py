"""Errors in Anthropic's format: {"type": "error", "error": {type, message}, "request_id"}."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from apps.serving.ingress.dialects.openai_errors import OpenAIError, retry_after

PATHS = "/v1/messages"
"""Base path of Anthropic's dialect."""

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


def response(error: OpenAIError) -> Response:
    """The error as a response. A full queue is 529: Anthropic's 429 means that the caller reached its own limit."""
    body = _body(error)
    headers = retry_after(error.retry_after_s) | {"request-id": body["request_id"]}
    return JSONResponse(body, _status(error), headers)


def event(error: OpenAIError) -> bytes:
    """The error as the last server-sent event of a stream."""
    return b"event: error\ndata: " + json.dumps(_body(error)).encode() + b"\n\n"


def spoken_at(scope: Mapping[str, Any]) -> bool:
    """Whether a request's path belongs to Anthropic's dialect."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return path == PATHS or path.startswith(f"{PATHS}/")


def by_path(scope: Mapping[str, Any], error: OpenAIError) -> Response:
    """The error in Anthropic's format on Anthropic's paths, in OpenAI's elsewhere."""
    return response(error) if spoken_at(scope) else error.response()


def _status(error: OpenAIError) -> int:
    full = error.status == 429 and error.param is None  # otherwise `param` names the limit that the caller has reached
    return 529 if full else error.status


def _body(error: OpenAIError) -> dict[str, Any]:
    """The JSON body. The message names the field, because the format has no other place for it."""
    status, message = _status(error), error.message
    if error.code == "context_length_exceeded":  # clients match this text to shorten a conversation
        message = f"prompt is too long: {message}"
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    kind = TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": new_request_id()}
