"""Service accounts of a config's Pods, and the load balancers and gateways of its service."""

from typing import Any

from kuberay.render.notes import noted
from kuberay.render.objects import MANAGED, kubernetes_object, metadata
from kuberay.render.ray.pods import Config
from kuberay.render.ray.serve_config import SERVE_PORT
from ray_configs.cluster.labels import CERTIFICATE_MAP, GCP_SERVICE_ACCOUNT, LOAD_BALANCER_ADDRESSES, LOAD_BALANCER_TYPE
from ray_configs.exposure import Gateway, LoadBalancer
from ray_configs.service import Service


def service_accounts(config: Config) -> list[dict[str, Any]]:
    """The Kubernetes service accounts that act as an IAM service account (Workload Identity)."""
    identity = config.service_account
    if identity is None:
        return []
    email = f"{identity.service_account}@{config.cloud.project}.iam.gserviceaccount.com"
    annotations = {GCP_SERVICE_ACCOUNT: email}
    # No instance label, as several configs in a namespace may share it.
    shared = {
        "name": identity.service_account,
        "namespace": config.namespace,
        "labels": MANAGED,
        "annotations": annotations,
    }
    found = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": shared}] if identity.create else []
    if isinstance(config, Service) and config.head_account:
        own = metadata(config, config.head_account)
        own[noted("annotations", "Only for the head: its autoscaler may change Pods and RayClusters.")] = annotations
        found.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own})
    return found


def serve_service(exposure: LoadBalancer) -> dict[str, Any]:
    """The template of KubeRay's NAME-serve-svc, which is a ClusterIP on port 8000 by default."""
    service: dict[str, Any] = {
        "spec": {
            "type": "LoadBalancer",
            "ports": [{"name": "serve", "port": exposure.port, "targetPort": SERVE_PORT, "protocol": "TCP"}],
        }
    }
    if exposure.source_ranges:
        service["spec"]["loadBalancerSourceRanges"] = list(exposure.source_ranges)
    annotations = {LOAD_BALANCER_TYPE: "Internal"} if exposure.internal else {}
    annotations |= {LOAD_BALANCER_ADDRESSES: exposure.address} if exposure.address else {}
    return {"metadata": {"annotations": annotations}, **service} if annotations else service


def gateway_objects(service: Service, exposure: Gateway) -> list[dict[str, Any]]:
    """A Gateway, unless there is one, the route from it to Serve, its health check and what guards it."""
    backend = f"{service.name}-serve-svc"
    parent = {"name": service.name}
    if exposure.existing:
        ref = exposure.existing
        fields = {"name": ref.name, "namespace": ref.namespace, "sectionName": ref.listener}
        parent = {name: value for name, value in fields.items() if value is not None}
    route: dict[str, Any] = {
        "parentRefs": [parent],
        "rules": [{"backendRefs": [{"name": backend, "port": SERVE_PORT}]}],
    }
    if exposure.hosts:
        route = {"hostnames": list(exposure.hosts), **route}
    # A long answer streams for minutes; the load balancer's default limit is 30 seconds.
    policy: dict[str, Any] = {"timeoutSec": 3600}
    if exposure.security_policy:
        policy["securityPolicy"] = exposure.security_policy
    if iap := exposure.iap:
        client = {"clientID": iap.client_id, "oauth2ClientSecret": {"name": iap.client_secret}} if iap.client_id else {}
        policy["iap"] = {"enabled": True, **client}
    health = {"type": "HTTP", "httpHealthCheck": {"port": SERVE_PORT, "requestPath": "/-/healthz"}}
    target = {"group": "", "kind": "Service", "name": backend}
    found: dict[str, dict[str, Any]] = {
        "gateway.networking.k8s.io/v1": {"HTTPRoute": route},
        "networking.gke.io/v1": {
            "HealthCheckPolicy": {"default": {"config": health}, "targetRef": target},
            "GCPBackendPolicy": {"default": policy, "targetRef": target},
        },
    }
    own = [] if exposure.existing else [_gateway(service, exposure)]
    return own + [
        kubernetes_object(api, kind, metadata(service), spec)
        for api, kinds in found.items()
        for kind, spec in kinds.items()
    ]


def _gateway(service: Service, exposure: Gateway) -> dict[str, Any]:
    listener: dict[str, Any] = {"name": "http", "protocol": "HTTP", "port": 80}
    if exposure.encrypted:
        listener = {"name": "https", "protocol": "HTTPS", "port": 443}
    if exposure.certificate:
        listener["tls"] = {"mode": "Terminate", "certificateRefs": [{"name": exposure.certificate}]}
    more = {"annotations": {CERTIFICATE_MAP: exposure.certificate_map}} if exposure.certificate_map else {}
    spec: dict[str, Any] = {"gatewayClassName": exposure.gateway_class, "listeners": [listener]}
    if exposure.address:
        spec["addresses"] = [{"type": "NamedAddress", "value": exposure.address}]
    return kubernetes_object("gateway.networking.k8s.io/v1", "Gateway", metadata(service, **more), spec)
