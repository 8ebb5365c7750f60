"""What a batch is checked by: its input file before any request runs, and its records whenever they are read."""

from typing import Any

from apps.llm.batch_api.files.storage import Damaged, Found, Kinds, created_s, typed
from apps.llm.batch_api.input_file import InputFile
from apps.llm.batch_api.lines import check_model, check_not_streamed, json_object, request_body
from apps.serving.ingress.bodies import MAX_BYTES, BodyTooLarge
from apps.serving.ingress.dialects.openai_errors import OpenAIError
from apps.serving.ingress.json_body import check_values

MAX_ERRORS = 100
"""Bad lines that are reported one by one; the others are only counted."""
MAX_MESSAGE = 1000
"""Characters of an error's message, which may repeat what the line says."""


LINE_TOO_LARGE = f"the line is larger than {MAX_BYTES // 2**20} MiB"


class BatchFailed(Exception):
    """The batch cannot be answered."""

    def __init__(self, *errors: dict[str, Any]):
        super().__init__(errors[0]["message"])
        self.errors = errors


def batch_error(code: str | None, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    """An error object of OpenAI's batches."""
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]} ... ({len(message):,} characters)"
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
        if span.lines == 1 and span.stop - span.start > MAX_BYTES + 1:
            errors.append(batch_error("line_too_large", LINE_TOO_LARGE, span.first + 1))
            continue
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
        raise OpenAIError(400, LINE_TOO_LARGE, None, "line_too_large")
    try:
        check_values(text)
    except BodyTooLarge as error:
        raise OpenAIError(400, str(error).replace("The request body", "the line"), None, "line_too_large") from None
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


Batch = dict[str, Any]
"""A batch object of OpenAI's API."""
TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
NOTHING_YET: Batch = {
    "status": "validating",
    "errors": None,
    "output_file_id": None,
    "error_file_id": None,
    "request_counts": {"total": 0, "completed": 0, "failed": 0},
} | {f"{name}_at": None for name in TIMES}
MARKER: Kinds = {"owner": str, "model": str, "expires_at": (int, float)}
REQUEST: Kinds = {
    "id": str,
    "created_at": int,
    "expires_at": (int, float),
    "model": str,
    "input_file_id": str,
    "endpoint": str,
    "completion_window": str,
}
PROGRESS: Kinds = {
    "status": str,
    "errors": (dict, type(None)),
    "output_file_id": (str, type(None)),
    "error_file_id": (str, type(None)),
    "request_counts": dict,
    "starts": int,
    "file_ids": list,
    **{f"{name}_at": (int, float, type(None)) for name in TIMES},
}
"""Fields of each record, and their types."""


def damaged_record(why: str) -> dict[str, Any]:
    """The error of a batch whose record cannot be read."""
    message = (
        f"A record of this batch is damaged ({why}). Its answers so far, if any, are in its files; create it again"
    )
    return batch_error("record_damaged", message)


def as_seen(id_: str, batch: Found, progress: Found, cancel: Found, end: Found) -> Batch | None:
    """A batch as its key sees it, from its records; None if there is none."""
    if batch is progress is cancel is end is None:
        return None
    known, ended = typed(batch, REQUEST), typed(end, PROGRESS)
    unknown: Batch = {
        "id": id_,
        "object": "batch",
        "created_at": int(created_s(id_)),
        "expires_at": None,
        "model": None,
    }
    unknown |= {"input_file_id": "", "endpoint": "", "completion_window": "", "metadata": None}
    whole = REQUEST.keys() <= known.keys()
    seen = NOTHING_YET | ({} if whole else unknown) | known
    seen |= {key: value for key, value in typed(progress, PROGRESS).items() if key in NOTHING_YET}
    if cancel is not None:
        seen |= typed(cancel, PROGRESS) | {"status": "cancelling"}
    if "status" in ended:
        return seen | ended
    if not whole or end is not None:
        broken = end if whole else batch or Damaged("it is missing")
        why = broken.why if isinstance(broken, Damaged) else "its fields are not known here"
        seen |= {"status": "failed", "errors": {"object": "list", "data": [damaged_record(why)]}}
    return seen
