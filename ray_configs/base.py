"""What every config has in common."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, StringConstraints, model_serializer


class Config(BaseModel):
    """Frozen, and an unknown field is an error that names it: a typo must not become a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Kind(Config):
    """One of the kinds that a field may hold. `kind` says which, so a dump that leaves out defaults keeps it."""

    kind: str

    @model_serializer(mode="wrap")
    def _with_kind(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.kind, **dump(self)}


Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""A Kubernetes name that is a DNS label too: small letters, digits and dashes, a letter first."""
