"""What the engine raises and what a body lacks, as errors that OpenAI's clients expect."""

from collections.abc import Mapping

from pydantic import ValidationError

from apps.llm.api import EngineStopped, PromptTooLong, QueueFull, RequestError
from apps.llm.model import Model, Models
from apps.serving.ingress import openai_errors
from apps.serving.ingress.openai_errors import OpenAIError
from apps.serving.ingress.request_body import BodyTooLarge

STOPPED_RETRY_AFTER_S = 5
"""About what a replica whose engine failed needs to be noticed; another one may answer at once."""

EngineError = RequestError | QueueFull | EngineStopped
ENGINE_ERRORS = (RequestError, QueueFull, EngineStopped)

UNIONS = {
    "input": "input must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
    "prompt": "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
    "stop": "stop must be a string or a list of strings",
}
"""What to say of a field that may be of several types, instead of one complaint for each."""


def from_engine(error: EngineError, names: Mapping[str, str]) -> OpenAIError:
    """The OpenAI form of what the engine raises. `names`: engine's field -> the field that the client wrote."""
    match error:
        case PromptTooLong():
            return OpenAIError(400, str(error), names.get(error.field, error.field), "context_length_exceeded")
        case RequestError():
            return OpenAIError(400, str(error), names.get(error.field, error.field), "invalid_value")
        case QueueFull():
            message = f"The server is busy: {error}. Try again later."
            return OpenAIError(429, message, None, "rate_limit_exceeded", error.retry_after_s)
        case EngineStopped():
            return OpenAIError(503, f"The model cannot answer: {error}", None, "engine_stopped", STOPPED_RETRY_AFTER_S)


def from_body(error: ValidationError | BodyTooLarge) -> OpenAIError:
    """The OpenAI form of a body that cannot be read, naming the first bad field."""
    return openai_errors.from_body(error, UNIONS)


def find_model(models: Models, name: str | None) -> Model:
    """The served model that a request names; the only one needs no name. Raises OpenAIError."""
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None:
        raise OpenAIError(400, f"model is needed: one of {', '.join(models)}", "model", "missing_required_parameter")
    if name not in models:
        message = f"The model '{name}' does not exist. Served here: {', '.join(models)}."
        raise OpenAIError(404, message, "model", "model_not_found")
    return models[name]
