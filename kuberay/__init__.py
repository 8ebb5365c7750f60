"""From typed configs to Kubernetes: render, node pools, check, apply, status, and a local emulation of GKE."""


class Refusal(Exception):
    """The command cannot be carried out; the text says why. Commands print it and exit with `status`."""

    status = 2
