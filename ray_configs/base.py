"""What every config has in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints


class Config(BaseModel):
    """Frozen, and an unknown field is an error that names it: a typo must not become a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""A Kubernetes name that is a DNS label too: small letters, digits and dashes, a letter first."""
