"""Errors of any engine, with the HTTP status and code that dialects give them. Imports no HTTP library."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST_CHARACTERS = 1000
"""Longest error message: it may quote what a client sent, which can be megabytes."""


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text, without its middle if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    head = most * 3 // 4
    return f"{text[:head]} [... {len(text) - most} characters left out ...] {text[head - most :]}"


class EngineError(Exception):
    """A request that the engine did not fulfil.

    Args:
        message: for the user. If it begins with `field`, a dialect replaces that with its own name of the field.
        field: what to change, by the engine's name.
        retry_after_s: when the same request may succeed; default: the class's own.
    """

    status = 500
    code = "internal_error"
    says = "The server failed: {}"
    retry_after_s: float | None = None

    def __init__(self, message: str, field: str | None = None, retry_after_s: float | None = None):
        super().__init__(shortened(message))
        self.field = field
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s


class RequestError(EngineError, ValueError):
    """A request that cannot be served as asked. `field` names what to change."""

    status, code, says = 400, "invalid_value", "{}"

    def __init__(self, field: str, message: str):
        super().__init__(message, field)


class QueueFull(EngineError, RuntimeError):
    """The queue is full: try again in `retry_after_s` seconds."""

    status, code, says = 429, "rate_limit_exceeded", "The server is busy: {}. Try again later."

    def __init__(self, message: str, retry_after_s: float = 1.0):
        super().__init__(message, retry_after_s=retry_after_s)


class LimitReached(QueueFull):
    """The caller has reached one of its own limits, which `field` names. Other callers may still be admitted."""

    says = "{}"

    def __init__(self, limit: str, message: str, retry_after_s: float):
        super().__init__(message, retry_after_s)
        self.field = limit


class EngineStopped(EngineError, RuntimeError):
    """The engine loop has ended (shutdown or a failed step); its message says why."""

    status, code, says = 503, "engine_stopped", "The model cannot answer: {}"
    retry_after_s = 5.0  # about how long Serve takes to notice a failed replica; another one may answer at once


class AnswerFailed(EngineError, RuntimeError):
    """The model failed at this one request, not at others; its message says why. Another try need not help."""

    code, says = "answer_failed", "The model cannot answer this request: {}."


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust has panicked. pyo3's exception for it is no Exception, and each library has its own."""
    return type(error).__name__ == "PanicException"


@contextmanager
def panics_as(error: Callable[[str], Exception]) -> Iterator[None]:
    """A library's panic in the block is raised as `error(its message)`: as an Exception, it fails one request only."""
    try:
        yield
    except BaseException as raised:
        if not is_panic(raised):
            raise
        raise error(str(raised)) from raised
