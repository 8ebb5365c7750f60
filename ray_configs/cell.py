"""Config of a cell: an admin that publishes models at run time onto slices that it owns."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from ray_configs.applications.callers import Callers
from ray_configs.applications.replicas import AppConfig
from ray_configs.applications.roots import ModelRoots

OWN_CPUS = 0.1
"""CPUs that Ray reserves for each of the cell's own processes, the admin and the fronts. They are mostly idle, and
share hosts with the models' replicas."""

_NAME = StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=63)
CellName = Annotated[str, _NAME]
"""A part of Saxml's /sax/CELL/MODEL: lower-case letters, digits, - and _, starting with a letter."""
Principal = Annotated[str, AfterValidator(lambda name: name.removeprefix("acl/")), _NAME]
"""The name of an API key. Saxml's prefix `acl/` may precede it."""


class CellConfig(AppConfig):
    """A cell as in Saxml: models `/sax/NAME/...` are published, updated and unpublished while it runs.

    Each replica of a published model owns one slice. `max_replicas` is the total number of slices that the cell may
    use, `min_replicas` the number that it keeps while nothing is published (multi-host slices: all or none). Without a
    slice, models run on CPUs, as many as fit.
    """

    import_path: ClassVar[str] = "apps.cell:build"
    default_name: ClassVar[str] = "cell"

    name: CellName = "test"
    """The cell's name: it serves /sax/NAME."""
    state_uri: str = Field("~/.local/state/podslice/cell", min_length=1)
    """Folder or gs:// path where the cell's state survives restarts. One cell at a time writes there."""
    model_roots: ModelRoots = ()
    """Folders and gs:// prefixes below which checkpoints may be published; others are refused, as are those with links
    that lead out of all of them."""
    hub_models: bool = True
    """Whether any model of the Hugging Face hub may be published, as `huggingface:OWNER/NAME`."""
    tiny: bool = False
    """Publish every model as a tiny random one of the same architecture, to try a cell without TPUs."""
    admins: tuple[Principal, ...] = ()
    """Principals (names of keys) that may publish, update and unpublish; empty: everyone with a key.

    An ACL that a client sets on the cell itself is kept with the state and replaces this list."""
    callers: Callers = Field(default_factory=dict)
    """Weights and limits by the names of API keys, at each published model; see `callers` of a language model."""
    front_replicas: int = Field(1, ge=1)
    """Processes that take the requests, and have the text of all models, as `routers` of a language model do. With two,
    one may end, and the other answers; use more for more clients."""

    @field_validator("admins", mode="before")
    @classmethod
    def _comma_separated(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _all_slices_or_none_kept(self) -> "CellConfig":
        if self.slice is not None and self.slice.hosts > 1 and self.min_replicas not in (0, self.max_replicas):
            raise ValueError(
                f"min_replicas={self.min_replicas} of max_replicas={self.max_replicas}: multi-host slices "
                f"({self.slice}) are kept all or not at all. Set min_replicas={self.max_replicas} to keep them all, or "
                "0 to have them only while models are published on them"
            )
        return self

    @property
    def state_bucket(self) -> str | None:
        """Name of the Cloud Storage bucket that keeps the state; None: it is kept in a folder."""
        return self.state_uri.removeprefix("gs://").partition("/")[0] if self.state_uri.startswith("gs://") else None

    @property
    def worker_cpus(self) -> float:
        """CPUs that a worker needs for one replica of a model and the cell's own processes."""
        return self.num_cpus + OWN_CPUS * (1 + self.front_replicas)
