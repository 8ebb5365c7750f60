"""Responses in the format of the HTTP proxy of Saxml's model servers, with the keys of both of its generations."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from apps.serving.errors import shortened
from apps.serving.ingress.dialects import anthropic_errors
from apps.serving.ingress.dialects.openai_errors import OpenAIError, retry_after


class SaxmlJSON(JSONResponse):
    """JSON indented by four spaces, with a trailing newline."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, indent=4).encode() + b"\n"


def failure(message: str) -> dict[str, str]:
    """`Error` is the first generation's key, `detail` the second's."""
    message = shortened(message)
    return {"Error": message, "detail": message}


def failed(message: str, status: int, retry_after_s: float | None = None) -> Response:
    """An error as a response."""
    return SaxmlJSON(failure(message), status, retry_after(retry_after_s))


def by_path(scope: Mapping[str, Any], error: OpenAIError) -> Response:
    """A cell's error: in the format of the model's dialect below /v1/, in Saxml's elsewhere."""
    if "/v1/" in scope["path"]:
        return anthropic_errors.by_path(scope, error)
    return failed(error.message, error.status, error.retry_after_s)
