"""How a service is reached from outside its cluster."""

import re
from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ray_configs.base import Config, Kind, Name


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
    address: str | None = Field(None, min_length=1)
    """Name of a reserved regional static IP address; None: any free one."""
    source_ranges: tuple[str, ...] = ()
    """CIDR ranges that may reach it, such as 10.0.0.0/8; empty: everyone who has a route to it."""

    @field_validator("source_ranges")
    @classmethod
    def _are_ranges(cls, ranges: tuple[str, ...]) -> tuple[str, ...]:
        for each in ranges:
            ip_network(each)  # says what is wrong
        return ranges


class GatewayRef(Config):
    """A Gateway that the cluster has, such as one that a platform team shares."""

    name: Name
    """Its name."""
    namespace: Name | None = None
    """Its namespace, which must allow routes from the service's; None: the service's own."""
    listener: Name | None = None
    """The listener to attach to; None: all that allow the route."""


class IdentityAwareProxy(Config):
    """Identity-Aware Proxy in front of the service: callers sign in with Google. IAM says who may."""

    client_id: str | None = None
    """OAuth client id; None: Google's own client."""
    client_secret: Name | None = None
    """Kubernetes Secret with the OAuth client's secret under the key `key`; goes with `client_id`."""

    @model_validator(mode="after")
    def _together(self) -> "IdentityAwareProxy":
        if (self.client_id is None) != (self.client_secret is None):
            raise ValueError("client_id and client_secret go together: set both, or neither for Google's own client")
        return self


class Gateway(Kind):
    """An HTTP(S) load balancer through the Gateway API, with GKE's health check pointed at Serve's."""

    kind: Literal["gateway"] = "gateway"
    existing: GatewayRef | None = None
    """A Gateway of the cluster to route from; None: one of the service's own is made."""
    gateway_class: str = "gke-l7-rilb"
    """gke-l7-rilb is internal; gke-l7-global-external-managed is on the internet: set `api_keys` first."""
    hostname: str | None = None
    """Host name that the route matches; None: any."""
    hostnames: tuple[str, ...] = ()
    """More host names."""
    certificate: str | None = None
    """Secret of type kubernetes.io/tls for HTTPS on port 443; None: HTTP on port 80."""
    certificate_map: str | None = Field(None, min_length=1)
    """Certificate Manager's map of certificates for HTTPS, in place of `certificate`."""
    address: str | None = Field(None, min_length=1)
    """Name of a reserved static IP address: global for global classes, else regional; None: any free one."""
    iap: IdentityAwareProxy | None = None
    """Identity-Aware Proxy; None: whoever reaches the Gateway reaches the service."""
    security_policy: str | None = Field(None, min_length=1)
    """Cloud Armor security policy, by name, that requests must pass; None: none."""

    @field_validator("hostname", "hostnames")
    @classmethod
    def _are_hosts(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for name in (value,) if isinstance(value, str) else value or ():
            if not re.fullmatch(r"(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name):
                raise ValueError(f"{name!r} is no host name: write it in small letters, such as llm.example.com")
        return value

    @model_validator(mode="after")
    def _one_gateway(self) -> "Gateway":
        own = ("gateway_class", "certificate", "certificate_map", "address")
        if self.existing and (given := [field for field in own if field in self.model_fields_set]):
            raise ValueError(f"{given[0]} is the existing Gateway's own affair: leave it out, or leave out existing")
        if self.certificate and self.certificate_map:
            raise ValueError("certificate and certificate_map are two sources of one thing: leave one out")
        if self.iap and not self.existing and not self.encrypted:
            raise ValueError("iap needs HTTPS: set certificate or certificate_map")
        return self

    @property
    def hosts(self) -> tuple[str, ...]:
        """All host names; empty: any."""
        return tuple(dict.fromkeys([*([self.hostname] if self.hostname else []), *self.hostnames]))

    @property
    def encrypted(self) -> bool:
        """Whether its own Gateway speaks HTTPS."""
        return bool(self.certificate or self.certificate_map)

    @property
    def internal(self) -> bool:
        """Whether its own Gateway is reachable from the VPC only; that of an existing one is not known."""
        return self.existing is None and self.gateway_class == "gke-l7-rilb"


Exposure = Annotated[ClusterIP | LoadBalancer | Gateway, Field(discriminator="kind")]
