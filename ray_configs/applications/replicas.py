"""What every application's config says about its replicas."""

import re
from typing import Any, ClassVar

from pydantic import Field, SecretStr, field_validator, model_validator

from ray_configs.base import Config
from ray_configs.tpu import SliceField


class AppConfig(Config):
    """A Serve application whose replicas each own a slice, or run on CPUs."""

    import_path: ClassVar[str]
    """Import path of the typed builder that reads this config back, `module:attribute`."""
    default_name: ClassVar[str]

    slice: SliceField | None = None
    """The TPU slice that each replica owns, such as `v4:2x2x1` or `v5e:2x4:8t`; None runs on the CPU."""
    min_replicas: int = Field(1, ge=0)
    """Replicas kept without traffic. With 0, the last one stops ten minutes after the last request, and its slice is
    released five minutes later; the next request waits for a slice and for the model to load: minutes, or as long as
    the capacity takes (flex-start: hours)."""
    max_replicas: int = Field(1, ge=1)
    """Upper limit of replicas, and so of slices. Equal to `min_replicas`: no autoscaling."""
    num_cpus: float = Field(1, ge=0)
    """CPUs that Ray reserves for a replica (accounting, not a limit)."""
    api_keys: tuple[SecretStr, ...] = ()
    """Accepted `Authorization: Bearer` keys; empty: open. PODSLICE_API_KEYS (comma-separated) adds to them.

    Written KEY or NAME=KEY. NAME (lower-case letters, digits, - and _, starting with a letter) is the key's principal
    in a cell's ACLs; without it, `default`. Several keys may share a name, but no key has two.

    Prefer the environment (in Kubernetes, from a Secret): what is written here appears in the Serve config, its
    dashboard and its logs, as every argument of an application does."""

    cors_origins: tuple[str, ...] = ()
    """Other sites whose pages may use the application from a browser (CORS), such as `https://chat.example.com`; `*`:
    all. Empty: none."""

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _comma_separated_origins(cls, value: Any) -> Any:
        return [origin.strip() for origin in value.split(",") if origin.strip()] if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", origin) is None:
                raise ValueError(
                    f"{origin!r} is no origin: write SCHEME://HOST or SCHEME://HOST:PORT, without a path or a slash at "
                    "the end, as browsers send it, such as https://chat.example.com; or *"
                )
        return origins

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
    def image_name(self) -> str:
        """The project's image that it runs in: a target of the Dockerfile."""
        return "llm"

    @property
    def spans_hosts(self) -> bool:
        """Whether a replica's slice has more than one host."""
        return self.slice is not None and not self.slice.single_host

    @property
    def worker_cpus(self) -> float:
        """CPUs that a worker needs for one replica."""
        return self.num_cpus

    @property
    def all_cpus(self) -> float:
        """CPUs that its processes ask for together."""
        return self.worker_cpus * self.max_replicas
