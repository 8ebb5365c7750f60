"""What the API server says of the structure of any object: fields, types, names, and what is yet to be filled in."""

from kuberay.check.structure import names, placeholders, schemas  # noqa: F401
