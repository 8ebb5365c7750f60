"""What a typed config promises that its manifest cannot show: does the model fit, can it be fetched, who may ask it."""

from kuberay.check.configs import cells, services  # noqa: F401
