"""Refusals of a cell, with their HTTP status."""


class CellError(Exception):
    """A refusal that goes to the client as it is."""

    status = 400

    def __init__(self, message: str, retry_after_s: float | None = None):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotAllowed(CellError):
    """The key's principal is in none of the ACLs that would let it."""

    status = 403


class NotPublished(CellError):
    """No model of that name."""

    status = 404


class AlreadyTaken(CellError):
    """The name is taken, or the cell belongs to others already."""

    status = 409


class Unavailable(CellError):
    """Not now; the same call may succeed later."""

    status = 503
