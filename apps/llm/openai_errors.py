"""Errors as OpenAI's clients expect them: a status, and {"error": {message, type, param, code}}."""

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from apps.llm.engine import EngineStopped, PromptTooLong, QueueFull, RequestError
from apps.llm.request_body import BodyTooLarge

STOPPED_RETRY_AFTER_S = 5
"""About what a replica whose engine failed needs to be noticed; another one may answer at once."""

EngineError = RequestError | QueueFull | EngineStopped
ENGINE_ERRORS = (RequestError, QueueFull, EngineStopped)

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
UNIONS = {
    "prompt": "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
    "stop": "stop must be a string or a list of strings",
}
"""What to say of a field that may be of several types, instead of one complaint for each."""


class OpenAIError(Exception):
    """A refusal or failure that goes to the client as it is."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)

    def event(self) -> bytes:
        """The error as the last server-sent event of a stream."""
        return b"data: " + json.dumps(self.body()).encode() + b"\n\n"


def from_engine(error: EngineError, names: Mapping[str, str]) -> OpenAIError:
    """The OpenAI form of what the engine raises. `names`: engine's field -> the field that the client wrote."""
    match error:
        case PromptTooLong():
            return OpenAIError(400, str(error), names.get(error.field, error.field), "context_length_exceeded")
        case RequestError():
            return OpenAIError(400, str(error), names.get(error.field, error.field), "invalid_value")
        case QueueFull():
            message = f"The server is busy: {error}. Try again later."
            return OpenAIError(429, message, None, "rate_limit_exceeded", error.retry_after_s)
        case EngineStopped():
            return OpenAIError(503, f"The model cannot answer: {error}", None, "engine_stopped", STOPPED_RETRY_AFTER_S)


def from_body(error: ValidationError | BodyTooLarge) -> OpenAIError:
    """The OpenAI form of a body that cannot be read, naming the first bad field."""
    if isinstance(error, BodyTooLarge):
        return OpenAIError(413, str(error), None, "request_too_large")
    # A value that may be of several types gives one complaint for each: the one that got furthest tells most.
    detail = max(error.errors(include_url=False, include_context=False), key=lambda e: len(e["loc"]))
    if detail["type"] == "json_invalid":
        return OpenAIError(400, f"The body of the request is not valid JSON: {detail['msg']}", None, "invalid_json")
    param = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            param += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool", "none"):  # else a union's branch
            param += f".{part}" if param else part
    field = detail["loc"][0] if detail["loc"] else None
    if not param:
        return OpenAIError(400, "The body of the request must be a JSON object.", None, "invalid_type")
    if field in UNIONS:
        return OpenAIError(400, UNIONS[field], field, "invalid_type")
    message = detail["msg"].removeprefix("Value error, ")
    code = "missing_required_parameter" if detail["type"] == "missing" else "invalid_value"
    return OpenAIError(400, f"{param}: {message}", param, code)
