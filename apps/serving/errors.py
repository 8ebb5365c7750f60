"""What an engine answers instead of a result, whatever it makes; each says how HTTP puts it. No HTTP library here."""


class EngineError(Exception):
    """A request that the engine did not fulfil.

    Args:
        message: for the user. Where it begins with `field`, a dialect puts its own name of the field there.
        field: what to change, in the engine's terms.
        retry_after_s: when the same request may succeed; default: the class's own.
    """

    status = 500
    code = "internal_error"
    says = "The server failed: {}"
    retry_after_s: float | None = None

    def __init__(self, message: str, field: str | None = None, retry_after_s: float | None = None):
        super().__init__(message)
        self.field = field
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s


class RequestError(EngineError, ValueError):
    """A request that cannot be served as asked. `field` names what to change."""

    status, code, says = 400, "invalid_value", "{}"

    def __init__(self, field: str, message: str):
        super().__init__(message, field)


class QueueFull(EngineError, RuntimeError):
    """Too many requests wait already: try again in `retry_after_s` seconds."""

    status, code, says = 429, "rate_limit_exceeded", "The server is busy: {}. Try again later."

    def __init__(self, message: str, retry_after_s: float = 1.0):
        super().__init__(message, retry_after_s=retry_after_s)


class LimitReached(QueueFull):
    """The caller has what it may have, or has used it up. `field` names the limit; another caller may be let in."""

    says = "{}"

    def __init__(self, limit: str, message: str, retry_after_s: float):
        super().__init__(message, retry_after_s)
        self.field = limit


class EngineStopped(EngineError, RuntimeError):
    """The engine loop has ended (shutdown or a failed step); its message says why."""

    status, code, says = 503, "engine_stopped", "The model cannot answer: {}"
    retry_after_s = 5.0  # about what it takes to notice a failed replica; another one may answer at once
