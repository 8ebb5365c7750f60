"""Exceptions on the wire: by the names of the classes that an engine may raise, and of no others."""

from apps.arrays.model_folder import CheckpointError
from apps.llm.api import (
    AnswerFailed,
    EngineError,
    EngineStopped,
    LimitReached,
    PromptTooLong,
    QueueFull,
    RequestError,
    UnknownAdapter,
)
from apps.llm.router.wire.messages import SentError

OF_ENGINES: dict[str, type[EngineError]] = {
    kind.__name__: kind
    for kind in (
        *(AnswerFailed, EngineError, EngineStopped, LimitReached, PromptTooLong, QueueFull, RequestError),
        UnknownAdapter,
    )
}
OTHERS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (CheckpointError, ValueError, OSError, ImportError, MemoryError)
}


def sent_error(error: BaseException) -> SentError:
    """An exception as its nearest known class. One that is not known is a failure of the server."""
    kinds = OF_ENGINES.keys() | OTHERS.keys()
    kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in kinds), None)
    if kind is None:
        return SentError(EngineError.__name__, f"{type(error).__name__}: {error}")
    field, retry = getattr(error, "field", None), getattr(error, "retry_after_s", None)
    return SentError(kind, str(error), field, retry)


def received_error(sent: SentError) -> Exception:
    """The exception, to be raised."""
    if sent.kind in OTHERS:
        return OTHERS[sent.kind](sent.message)
    kind = OF_ENGINES.get(sent.kind, EngineError)
    error = kind.__new__(kind)  # each class makes its message of other arguments
    EngineError.__init__(error, sent.message, sent.field, sent.retry_after_s)
    return error
