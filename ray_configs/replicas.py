"""What every Serve application's config says of its replicas."""

from typing import Any, ClassVar

from pydantic import Field, SecretStr, field_validator, model_validator

from ray_configs.base import Config
from ray_configs.tpu import SliceField


class AppConfig(Config):
    """A Serve application whose replicas each own a slice, or run on CPUs."""

    import_path: ClassVar[str]
    """Serve's name of the typed builder that reads this config back, `module:attribute`."""
    image_name: ClassVar[str]
    """Which of the project's images holds what it needs: a target of the Dockerfile."""
    default_name: ClassVar[str]

    slice: SliceField | None = None
    """The TPU slice that each replica owns, such as `v4:2x2x1` or `v5e:2x4:8t`; None runs on the CPU."""
    min_replicas: int = Field(1, ge=0)
    """Replicas kept when nobody asks. With 0 the last one goes ten minutes after the last request, its slice five
    minutes later; the next request waits until a slice has come and the model is loaded: minutes, or as long as the
    capacity takes (flex-start: hours)."""
    max_replicas: int = Field(1, ge=1)
    """Replicas at most, and so slices at most. Equal to `min_replicas`: no autoscaling."""
    num_cpus: float = Field(1, ge=0)
    """CPUs that Ray sets aside for a replica (accounting, not a limit)."""
    api_keys: tuple[SecretStr, ...] = ()
    """Accepted `Authorization: Bearer` keys; empty: open. PODSLICE_API_KEYS (comma-separated) adds to them.

    Written KEY or NAME=KEY. NAME (small letters, digits, - and _, a letter first) is whom the key speaks for, in a
    cell's ACLs; without it, `default`. Several keys may share a name, but no key has two.

    Prefer the environment (in Kubernetes: from a Secret): what is written here appears in the Serve config, its
    dashboard and its logs, as every app argument does."""

    @field_validator("api_keys", mode="before")
    @classmethod
    def _comma_separated_keys(cls, value: Any) -> Any:
        return [key for key in value.split(",") if key] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _replica_range(self) -> "AppConfig":
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas ({self.max_replicas}) is below min_replicas ({self.min_replicas})")
        return self

    @property
    def worker_cpus(self) -> float:
        """CPUs that a worker must have for one replica."""
        return self.num_cpus
