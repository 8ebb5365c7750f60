"""Request lines of OpenAI's batch API, and the lines that answer them.

{"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
{"id": ..., "custom_id": "q1", "response": {"status_code": 200, "request_id": ..., "body": {...}}, "error": null}
"""

import json
from collections.abc import Collection
from typing import Any

from apps.serving.ingress.dialects.openai_errors import OpenAIError
from apps.serving.ingress.json_body import BadJSON, parsed_object


def json_object(text: bytes, example: str = '{"custom_id": ..., "url": ..., "body": ...}') -> dict[str, Any]:
    """Parses a line. Raises OpenAIError if it is not a JSON object."""
    try:
        return parsed_object(text)
    except BadJSON as error:
        if error.code == "invalid_type":
            raise OpenAIError(400, f"a line must be a JSON object, such as {example}", None, "invalid_type") from None
        raise OpenAIError(400, str(error).replace("The body of the request", "this"), error.field, error.code) from None


def custom_id(text: bytes) -> Any:
    """A line's custom_id; None if the line cannot be read."""
    try:
        return json_object(text).get("custom_id")
    except OpenAIError:
        return None


def request_body(line: dict[str, Any], urls: Collection[str]) -> dict[str, Any]:
    """The body of a line's request; the endpoint checks its fields. Raises OpenAIError, which names the bad field."""
    url, method, body = line.get("url"), line.get("method", "POST"), line.get("body")
    if not isinstance(url, str) or url not in urls:
        raise OpenAIError(400, f"url must be {' or '.join(urls)}, not {url!r}", "url", "invalid_value")
    if method != "POST":
        raise OpenAIError(400, f"method must be POST, not {method!r}", "method", "invalid_value")
    if not isinstance(body, dict):
        raise OpenAIError(400, "body must be a JSON object: the request", "body", "invalid_type")
    return body


def check_not_streamed(stream: Any) -> None:
    """Raises OpenAIError unless a body's `stream` is false or absent."""
    if stream:
        raise OpenAIError(400, "stream: answers in a file are not streamed; leave it out", "stream", "invalid_value")


def check_model(name: str | None, served: Collection[str]) -> None:
    """Raises OpenAIError unless a body's `model` is served or absent."""
    if name is not None and name not in served:
        message = f"The model '{name}' is not served here; use '{', '.join(served)}', or leave model out."
        raise OpenAIError(404, message, "model", "model_not_found")


def answered(name: object, custom_id: Any, status: int, body: Any) -> dict[str, Any]:
    """The line that answers a request. `name` makes its ids unique."""
    response = {"status_code": status, "request_id": f"req_{name}", "body": body}
    return {"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": None}


def unanswered(name: object, custom_id: Any, code: str, message: str) -> dict[str, Any]:
    """The line for a request that was never run."""
    error = {"code": code, "message": message}
    return {"id": f"batch_req_{name}", "custom_id": custom_id, "response": None, "error": error}


def dump(value: Any) -> str:
    """JSON text for one line, without line end, that UTF-8 can encode."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape and UTF-8 cannot encode
        return json.dumps(value)
    return text
