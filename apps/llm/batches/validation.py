"""What must be right of a batch's file before any of its lines is asked."""

from typing import Any

from apps.llm.batches.input_file import InputFile
from apps.llm.batches.lines import check_model, check_whole, json_object, request_body
from apps.serving.ingress.bodies import MAX_BYTES
from apps.serving.ingress.openai_errors import OpenAIError

MOST_ERRORS = 100
"""Bad lines that are told; of the others only how many there are."""


class BatchFailed(Exception):
    """The batch cannot be answered."""

    def __init__(self, *errors: dict[str, Any]):
        super().__init__(errors[0]["message"])
        self.errors = errors


def told_error(code: str | None, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients see it in a batch."""
    return {"code": code, "line": line, "message": message, "param": param}


def validate(source: InputFile, most_lines: int, endpoint: str, model: str) -> None:
    """Reads the whole file. Raises BatchFailed if it has too many lines, none, or any that is bad."""
    if source.lines == 0:
        raise BatchFailed(told_error("empty_file", "the file has no lines", None, "input_file_id"))
    if source.lines > most_lines:
        message = f"the file has {source.lines:,} lines, and a batch at most {most_lines:,}"
        raise BatchFailed(told_error("too_many_lines", message, None, "input_file_id"))
    seen: dict[str, int] = {}
    errors: list[dict[str, Any]] = []
    bad = 0
    for span in source.spans:
        for number, text in enumerate(source.span(span), span.first + 1):
            try:
                _check(text, number, endpoint, model, seen)
            except OpenAIError as error:
                bad += 1
                if bad <= MOST_ERRORS:
                    errors.append(told_error(error.code, error.message, number, error.param))
    if bad > MOST_ERRORS:
        errors.append(told_error("more_errors", f"{bad - MOST_ERRORS} more lines are bad"))
    if errors:
        raise BatchFailed(*errors)


def _check(text: bytes, number: int, endpoint: str, model: str, seen: dict[str, int]) -> None:
    """What can be known without the model; raises OpenAIError. The rest its endpoint says in the answer.

    Args:
        seen: the number of each `custom_id`'s first line.
    """
    if len(text) > MAX_BYTES:
        raise OpenAIError(400, f"the line is larger than {MAX_BYTES // 2**20} MiB", None, "line_too_large")
    line = json_object(text)
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise OpenAIError(400, "custom_id must be a string that is not empty", "custom_id", "invalid_value")
    body = request_body(line, (endpoint,))
    check_whole(body.get("stream"))
    if isinstance(name := body.get("model"), str):
        check_model(name, (model,))
    first = seen.setdefault(custom_id, number)
    if first != number:
        message = f"custom_id {custom_id!r} is line {first}'s already"
        raise OpenAIError(400, message, "custom_id", "duplicate_custom_id")
