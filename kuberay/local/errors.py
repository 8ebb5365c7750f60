"""What a person reads when it does not work."""


class LocalError(Exception):
    """It cannot be run here, or not so; the text says why and what to do."""


class ServiceFailed(LocalError):
    """It was started, and its service cannot be had: the text is Serve's, or Ray's."""
