"""How a service is reached from outside its cluster."""

from typing import Annotated, Literal

from pydantic import Field

from ray_configs.base import Kind


class ClusterIP(Kind):
    """Reachable from inside the cluster only; from a laptop by `kubectl port-forward svc/NAME-serve-svc 8000`."""

    kind: Literal["cluster-ip"] = "cluster-ip"


class LoadBalancer(Kind):
    """A passthrough load balancer with its own address in front of the Serve port."""

    kind: Literal["load-balancer"] = "load-balancer"
    port: int = Field(8000, ge=1, le=65535)
    """Port that clients use; Saxml's tutorials use 8888."""
    internal: bool = True
    """Reachable from the VPC only. False puts it on the internet: set `api_keys` first."""


class Gateway(Kind):
    """An HTTP(S) load balancer through the Gateway API, with GKE's health check pointed at Serve's."""

    kind: Literal["gateway"] = "gateway"
    gateway_class: str = "gke-l7-rilb"
    """gke-l7-rilb is internal; gke-l7-global-external-managed is on the internet: set `api_keys` first."""
    hostname: str | None = None
    """Host name that the route matches; None: any."""
    certificate: str | None = None
    """Secret of type kubernetes.io/tls for HTTPS on port 443; None: HTTP on port 80."""

    @property
    def internal(self) -> bool:
        return self.gateway_class == "gke-l7-rilb"


Exposure = Annotated[ClusterIP | LoadBalancer | Gateway, Field(discriminator="kind")]
