"""A line of a file for OpenAI's batch API, and the line that answers it.

{"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
{"id": ..., "custom_id": "q1", "response": {"status_code": 200, "request_id": ..., "body": {...}}, "error": null}
"""

import json
from collections.abc import Collection
from typing import Any

from apps.serving.ingress.openai_errors import OpenAIError


def json_object(text: bytes, example: str = '{"custom_id": ..., "url": ..., "body": ...}') -> dict[str, Any]:
    """The object that a line is. Raises OpenAIError."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OpenAIError(400, f"this is not JSON: {error}", None, "invalid_json") from None
    if not isinstance(fields, dict):
        raise OpenAIError(400, f"a line must be a JSON object, such as {example}", None, "invalid_type")
    return fields


def request_body(line: dict[str, Any], urls: Collection[str]) -> dict[str, Any]:
    """The request in a line, whose fields are the endpoint's to check. Raises OpenAIError, which names the field."""
    url, method, body = line.get("url"), line.get("method", "POST"), line.get("body")
    if not isinstance(url, str) or url not in urls:
        raise OpenAIError(400, f"url must be {' or '.join(urls)}, not {url!r}", "url", "invalid_value")
    if method != "POST":
        raise OpenAIError(400, f"method must be POST, not {method!r}", "method", "invalid_value")
    if not isinstance(body, dict):
        raise OpenAIError(400, "body must be a JSON object, the request", "body", "invalid_type")
    return body


def check_whole(stream: Any) -> None:
    """A body's `stream` must be false or absent. Raises OpenAIError."""
    if stream:
        raise OpenAIError(400, "stream: answers in a file are whole; leave it out", "stream", "invalid_value")


def check_model(name: str | None, served: Collection[str]) -> None:
    """A body's `model` must be served, or absent. Raises OpenAIError."""
    if name is not None and name not in served:
        message = (
            f"The model '{name}' is not what runs here, which is '{', '.join(served)}'; name that, or leave model out."
        )
        raise OpenAIError(404, message, "model", "model_not_found")


def answered(name: object, custom_id: Any, status: int, body: Any) -> dict[str, Any]:
    """What answers a line. `name` tells the line from others in ids."""
    response = {"status_code": status, "request_id": f"req_{name}", "body": body}
    return {"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": None}


def never_asked(name: object, custom_id: Any, code: str, message: str) -> dict[str, Any]:
    """What stands for a line whose time was over before it was asked."""
    error = {"code": code, "message": message}
    return {"id": f"batch_req_{name}", "custom_id": custom_id, "response": None, "error": error}


def dump(value: Any) -> str:
    """JSON as a line without its end, in characters that UTF-8 has."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape and UTF-8 cannot say
        return json.dumps(value)
    return text
