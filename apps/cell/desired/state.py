"""The state that a cell keeps: published models, and who may change them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

FORMAT: Literal[1] = 1
"""Increased when an older Podslice could misread what this one writes."""


class PublishedAdapter(BaseModel):
    """A LoRA adapter of a published model."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model_path: str
    order: int = Field(ge=0)
    """Place in the order of publication. One that is published anew at the same path is read again."""


class Published(BaseModel):
    """The desired state of one published model. What actually runs is read from Ray Serve."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model_path: str
    checkpoint: str = "None"
    replicas: int = Field(1, ge=0)
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Fields of LLMConfig, by name."""
    adapters: dict[str, PublishedAdapter] = Field(default_factory=dict)
    """LoRA adapters for it, by name."""
    acls: dict[str, str] = Field(default_factory=dict)
    """Method -> principals that may call it; everyone may call an absent method."""
    admin_acl: str = ""
    """Principals that may change or unpublish it, besides the cell's admins."""
    published_at: int = 0
    """Unix time."""
    order: int = Field(ge=0)
    """Place in the order of publication: earlier models get slices first."""


class CellState(BaseModel):
    """The whole state. Frozen: a change makes a new one, which takes effect once it is written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = FORMAT
    cell: str
    admin_acl: str | None = None
    """The cell's admins as a client set them; None: as in the config."""
    published: int = 0
    """Models and adapters published so far; the next one's `order`."""
    models: dict[str, Published] = Field(default_factory=dict)
    """By full name, /sax/CELL/MODEL."""

    @model_validator(mode="before")
    @classmethod
    def _without_relay_key(cls, data: Any) -> Any:
        """States written before engines had a wire of their own have one."""
        return {name: value for name, value in data.items() if name != "relay_key"} if isinstance(data, dict) else data

    @property
    def names(self) -> dict[str, Published]:
        """Every name that a client may use: the models, each followed by its adapters, as model:adapter."""
        found = {}
        for name, model in self.models.items():
            found[name] = model
            found |= {f"{name}:{adapter}": model for adapter in model.adapters}
        return found

    def with_model(self, name: str, model: Published) -> "CellState":
        latest = max([model.order, *(adapter.order for adapter in model.adapters.values())])
        return self.model_copy(
            update={"models": self.models | {name: model}, "published": max(self.published, latest + 1)}
        )

    def without_model(self, name: str) -> "CellState":
        return self.model_copy(update={"models": {key: m for key, m in self.models.items() if key != name}})
