"""What a typed config shows and its manifest does not: whether the model fits, can be fetched, and who may use it."""

from kuberay.check.configs import cells, services  # noqa: F401
