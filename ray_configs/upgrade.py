"""How a change of a service's cluster (image, slices, environment) reaches a service that runs."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ray_configs.base import Kind


class NewCluster(Kind):
    """A second Ray cluster beside the first; requests move over at once when it serves. No pause.

    Every slice is needed twice meanwhile, and the upgrade waits until it has them.
    """

    kind: Literal["new-cluster"] = "new-cluster"


class Incremental(Kind):
    """A second Ray cluster that takes over by and by, through a Gateway that KubeRay makes: NAME-gateway, on port 80.

    The old cluster gives slices back as the new one takes them, so that fewer are needed than twice. It needs the
    autoscaler, which is then on, and KubeRay 1.7 (1.5 and 1.6: feature gate RayServiceIncrementalUpgrade).
    """

    kind: Literal["incremental"] = "incremental"
    gateway_class: str = Field(min_length=1)
    """GatewayClass of a controller that finds out by itself which endpoints are ready, such as `istio`.

    GKE's own classes ask each backend for `/`, which a service need not answer, and KubeRay's backends have no names
    beforehand that a HealthCheckPolicy could point to."""
    step_percent: int = Field(25, ge=1, le=100)
    """Of the requests that move to the new cluster at a time."""
    interval_s: int = Field(60, ge=1)
    """Seconds between two such steps."""
    max_surge_percent: int = Field(100, ge=1, le=100)
    """Of its replicas that the new cluster may start ahead of what the old one has given up; 100: all at once."""

    @model_validator(mode="after")
    def _step_within_surge(self) -> "Incremental":
        if self.step_percent > self.max_surge_percent:
            raise ValueError(
                f"step_percent ({self.step_percent}) is above max_surge_percent ({self.max_surge_percent}): requests "
                "would move to replicas that are not there yet"
            )
        return self


Upgrade = Annotated[NewCluster | Incremental, Field(discriminator="kind")]
