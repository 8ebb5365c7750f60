"""Errors of a local run, in words for the person who started it."""


class LocalError(Exception):
    """The service cannot be run here, or not as asked; the text says why and what to do."""


class ServiceFailed(LocalError):
    """The cluster started, and its service failed; the text is Serve's, or Ray's."""
