"""What the engine raises, as HTTP errors in OpenAI's form."""

from collections.abc import Mapping

from apps.serving.ingress.openai_errors import OpenAIError
from apps.stable_diffusion.engine.job import Aborted, EngineStopped, PictureFailed, QueueFull
from apps.stable_diffusion.engine.request import RequestError

STOPPED_RETRY_AFTER_S = 5
"""About what a replica whose engine failed needs to be noticed; another one may answer at once."""

EngineError = RequestError | QueueFull | EngineStopped | PictureFailed | Aborted
ENGINE_ERRORS = (RequestError, QueueFull, EngineStopped, PictureFailed, Aborted)


def from_engine(error: EngineError, names: Mapping[str, str]) -> OpenAIError:
    """The HTTP form of an engine's error. `names`: engine's field -> the field that the client wrote."""
    match error:
        case RequestError():
            field = names.get(error.field, error.field)
            # Messages begin with the engine's name of the field; the client knows its own.
            message = field + str(error).removeprefix(error.field) if str(error).startswith(error.field) else str(error)
            return OpenAIError(400, message, field, "invalid_value")
        case QueueFull():
            message = f"The server is busy: {error}. Try again later."
            return OpenAIError(429, message, None, "rate_limit_exceeded", error.retry_after_s)
        case EngineStopped():
            return OpenAIError(503, f"The model cannot answer: {error}", None, "engine_stopped", STOPPED_RETRY_AFTER_S)
        case PictureFailed():
            return OpenAIError(500, f"The server failed: {error}", None, "internal_error")
        case Aborted():
            return OpenAIError(503, "The job was interrupted.", None, "interrupted", 1)
