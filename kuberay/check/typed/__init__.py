"""What a typed config shows and its manifest does not: models that do not fit, exposure, machines, cells."""

from kuberay.check.typed import cells, exposure, machines, models  # noqa: F401
