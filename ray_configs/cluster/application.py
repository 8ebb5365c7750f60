"""One application of a service: what runs, on which machines, with what added to its Pods."""

import math
import re

from pydantic import Field, field_validator, model_validator

from ray_configs.applications.model_size import fetched_gb
from ray_configs.base import Config, Name
from ray_configs.capacity import Capacity, OnDemand
from ray_configs.cell import CellConfig
from ray_configs.cluster.overlay import ContainerOverlay, PodOverlay
from ray_configs.cluster.workers import PROCESS_SCRATCH_GB, refuse_unsold
from ray_configs.llm import LLMConfig
from ray_configs.stable_diffusion import StableDiffusionConfig

TPU_SCRATCH_GB = 40
"""Room for hub models of unknown size, such as Stable Diffusion's."""


class Application(Config):
    """One Serve application of a service."""

    config: LLMConfig | StableDiffusionConfig | CellConfig
    """What runs; its slice and replica counts determine what is bought."""
    name: Name | None = None
    """Name in Serve and its metrics; None: `llm`, `stable-diffusion` or `cell`."""
    route_prefix: str = "/"
    """URL path prefix. Each of several applications needs its own."""
    capacity: Capacity = OnDemand()
    """How its slices are bought."""
    scratch_gb: int | None = Field(None, ge=PROCESS_SCRATCH_GB)
    """Local disk, 10^9 bytes, that a Pod of its workers may fill; a Pod that fills more is evicted. Node pools get boot
    disks to match.

    None: 40 (10 without a slice), or more for a hub model whose name states its size (`-70B`), because each host
    downloads all of it. For a cell, set it to the size of the largest hub model that will be published, plus 20."""
    image: str | None = None
    """Container image of its workers; None: the project's own image for this kind of application."""
    zones: tuple[str, ...] = ()
    """Zones of the node pools of its slices, such as that of a reservation; empty: `cloud.zones`."""
    pod: PodOverlay = Field(default_factory=dict)
    """Merged into the Pod templates of its workers last, as `kubectl patch` does: pull secrets, security context,
    tolerations, labels, sidecars, volumes. `check` holds the result against Kubernetes' schemas."""
    container: ContainerOverlay = Field(default_factory=dict)
    """Merged into the container of its workers last: env, volumeMounts, securityContext and the like."""

    @field_validator("route_prefix")
    @classmethod
    def _is_route(cls, prefix: str) -> str:
        if not re.fullmatch(r"/([^\s{}]*[^/\s{}])?", prefix):
            raise ValueError("must start with /, not end with one, and hold no spaces or braces, such as /pictures")
        return prefix

    @model_validator(mode="after")
    def _routed_where_machines_go(self) -> "Application":
        """A single replica's answers wait for the next one, and with several they go on in another."""
        if isinstance(self.config, LLMConfig) and self.config.routers is None and self.capacity.may_go:
            routers = self.config.router_count or 1
            # Not assigned: that would validate again, and so end up here.
            self.__dict__["config"] = self.config.model_copy(update={"routers": routers})
        return self

    @model_validator(mode="after")
    def _placeable(self) -> "Application":
        refuse_unsold(self.config.slice, self.capacity)
        if self.config.slice is not None and (refusal := self.config.slice.ray_refusal):
            raise ValueError(refusal)
        if getattr(self.config, "api_keys", ()):
            raise ValueError(
                "api_keys must not be written into a service: everyone who reads the manifest would see "
                "them. Put them into a Secret and name it in Service(api_keys=SecretKey(...))"
            )
        return self

    @model_validator(mode="after")
    def _room_for_what_is_fetched(self) -> "Application":
        if not isinstance(self.config, LLMConfig):
            return self
        if self.scratch_gb is not None and self.scratch_gb < self._scratch_needed_gb:
            raise ValueError(
                f"scratch_gb={self.scratch_gb} is too little: each host fetches all of {self.config.model}, about "
                f"{fetched_gb(self.config)} GB, and the Pod would be evicted while it loads. Set "
                f"{self._scratch_needed_gb} or more, or leave it out; or prepare the model into a bucket "
                "(python -m apps.jobs.prepare), from which each host reads only its part"
            )
        return self

    @property
    def serve_name(self) -> str:
        return self.name or self.config.default_name

    @property
    def worker_scratch_gb(self) -> int:
        """Local disk that a Pod of its workers may fill, 10^9 bytes."""
        least = PROCESS_SCRATCH_GB if self.config.slice is None else TPU_SCRATCH_GB
        return self.scratch_gb or max(least, self._scratch_needed_gb)

    @property
    def _scratch_needed_gb(self) -> int:
        fetched = fetched_gb(self.config) if isinstance(self.config, LLMConfig) else None
        return 0 if fetched is None else math.ceil(fetched * 1.1) + PROCESS_SCRATCH_GB
