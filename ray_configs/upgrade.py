"""How a change of image, slices or environment reaches a running service."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ray_configs.base import Kind


class NewCluster(Kind):
    """A second Ray cluster beside the first; all requests move over when it serves. No downtime.

    The upgrade needs every slice twice, and waits until it has them.
    """

    kind: Literal["new-cluster"] = "new-cluster"


class Incremental(Kind):
    """A second Ray cluster that takes over step by step, through a Gateway made by KubeRay: NAME-gateway, on port 80.

    The old cluster releases slices as the new one takes them, so fewer than twice as many are needed. It turns the
    autoscaler on, and needs KubeRay 1.7 (1.5 and 1.6: feature gate RayServiceIncrementalUpgrade).
    """

    kind: Literal["incremental"] = "incremental"
    gateway_class: str = Field(min_length=1)
    """GatewayClass of a controller that reads endpoints' readiness from Kubernetes, such as `istio`.

    GKE's own classes probe `/` of each backend, which a service need not answer, and the names of KubeRay's backends
    are not known in advance, so no HealthCheckPolicy can point to them."""
    step_percent: int = Field(25, ge=1, le=100)
    """Share of the requests, in percent, that moves to the new cluster in each step."""
    interval_s: int = Field(60, ge=1)
    """Seconds between two steps."""
    max_surge_percent: int = Field(100, ge=1, le=100)
    """Share of its replicas, in percent, that the new cluster may start before the old one has released as many;
    100: all at once."""

    @model_validator(mode="after")
    def _step_within_surge(self) -> "Incremental":
        if self.step_percent > self.max_surge_percent:
            raise ValueError(
                f"step_percent ({self.step_percent}) is above max_surge_percent ({self.max_surge_percent}): requests "
                "would move to replicas that are not there yet"
            )
        return self


Upgrade = Annotated[NewCluster | Incremental, Field(discriminator="kind")]
