"""The structure of any object: fields, types, names, and placeholders."""

from kuberay.check.structure import names, schemas  # noqa: F401
