"""From typed configs to Kubernetes: render, node pools, check, apply, status, and a local emulation of GKE."""


class Refusal(Exception):
    """The command cannot run; the text says why. The command line prints it and exits with `status`."""

    status = 2
