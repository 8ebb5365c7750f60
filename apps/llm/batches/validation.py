"""Validation of a batch's input file, before any of its requests run."""

from typing import Any

from apps.llm.batches.input_file import InputFile
from apps.llm.batches.lines import check_model, check_not_streamed, json_object, request_body
from apps.serving.ingress.bodies import MAX_BYTES
from apps.serving.ingress.openai_errors import OpenAIError

MAX_ERRORS = 100
"""Bad lines that are reported one by one; the others are only counted."""


class BatchFailed(Exception):
    """The batch cannot be answered."""

    def __init__(self, *errors: dict[str, Any]):
        super().__init__(errors[0]["message"])
        self.errors = errors


def batch_error(code: str | None, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    """An error object of OpenAI's batches."""
    return {"code": code, "line": line, "message": message, "param": param}


def validate(source: InputFile, most_lines: int, endpoint: str, model: str) -> None:
    """Reads the whole file. Raises BatchFailed if it has no lines, too many, or a bad one."""
    if source.lines == 0:
        raise BatchFailed(batch_error("empty_file", "the file has no lines", None, "input_file_id"))
    if source.lines > most_lines:
        message = f"the file has {source.lines:,} lines; a batch may have at most {most_lines:,}"
        raise BatchFailed(batch_error("too_many_lines", message, None, "input_file_id"))
    seen: dict[str, int] = {}
    errors: list[dict[str, Any]] = []
    for span in source.spans:
        for number, text in enumerate(source.span(span), span.first + 1):
            try:
                _check(text, number, endpoint, model, seen)
            except OpenAIError as error:
                errors.append(batch_error(error.code, error.message, number, error.param))
    if len(errors) > MAX_ERRORS:
        errors[MAX_ERRORS:] = [batch_error("more_errors", f"{len(errors) - MAX_ERRORS} more lines are bad")]
    if errors:
        raise BatchFailed(*errors)


def _check(text: bytes, number: int, endpoint: str, model: str, seen: dict[str, int]) -> None:
    """Checks a line without the model; its endpoint checks the rest when it runs. Raises OpenAIError.

    Args:
        seen: custom_id -> number of its first line.
    """
    if len(text) > MAX_BYTES:
        raise OpenAIError(400, f"the line is larger than {MAX_BYTES // 2**20} MiB", None, "line_too_large")
    line = json_object(text)
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise OpenAIError(400, "custom_id must be a non-empty string", "custom_id", "invalid_value")
    body = request_body(line, (endpoint,))
    check_not_streamed(body.get("stream"))
    # Whether there is such an adapter is known when the line runs.
    if isinstance(name := body.get("model"), str) and not name.startswith(f"{model}:"):
        check_model(name, (model,))
    first = seen.setdefault(custom_id, number)
    if first != number:
        message = f"custom_id {custom_id!r} is already used by line {first}"
        raise OpenAIError(400, message, "custom_id", "duplicate_custom_id")
