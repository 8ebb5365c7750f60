"""Errors as OpenAI's clients expect them: a status, and {"error": {message, type, param, code}}."""

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from apps.serving.ingress.request_body import BodyTooLarge

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


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


def from_body(error: ValidationError | BodyTooLarge, unions: Mapping[str, str] | None = None) -> OpenAIError:
    """The OpenAI form of a body that cannot be read, naming the first bad field.

    `unions`: what to say of a field that may be of several types, instead of one complaint for each.
    """
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
    if unions and field in unions and detail["type"] != "value_error":
        return OpenAIError(400, unions[field], field, "invalid_type")
    message = detail["msg"].removeprefix("Value error, ")
    code = "missing_required_parameter" if detail["type"] == "missing" else "invalid_value"
    return OpenAIError(400, f"{param}: {message}", param, code)
