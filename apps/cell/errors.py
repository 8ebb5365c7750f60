"""Refusals of a cell, with their HTTP status."""

from apps.serving.errors import shortened


class CellError(Exception):
    """A refusal whose message is sent to the client."""

    status = 400

    def __init__(self, message: str, retry_after_s: float | None = None):
        super().__init__(shortened(message))
        self.retry_after_s = retry_after_s


class NotAllowed(CellError):
    """No ACL that applies admits the key's principal."""

    status = 403


class NotPublished(CellError):
    """No model of that name."""

    status = 404


class AlreadyTaken(CellError):
    """The name is taken, or the cell already has other admins."""

    status = 409


class AdminFailed(CellError):
    """A fault of the cell; the admin's log says which."""

    status = 500


class Unavailable(CellError):
    """A temporary failure; the same call may succeed later."""

    status = 503
