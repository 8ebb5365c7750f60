"""What every config has in common."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, StringConstraints, model_serializer


class Config(BaseModel):
    """Base of all configs: frozen, and an unknown field is an error, so that a typo is not silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class Kind(Config):
    """A member of a discriminated union. `kind` is dumped even where defaults are left out."""

    kind: str

    @model_serializer(mode="wrap")
    def _with_kind(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.kind, **dump(self)}


Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""A Kubernetes name that is also a DNS label: lower-case letters, digits and dashes, starting with a letter."""
