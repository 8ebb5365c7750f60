"""Service accounts of a config's Pods, and the load balancers and gateways of its service."""

from typing import Any

from kuberay.render.notes import noted
from kuberay.render.objects import MANAGED, kubernetes_object, metadata
from kuberay.render.ray.pods import Config
from kuberay.render.ray.serve_config import SERVE_PORT
from ray_configs.exposure import Gateway, LoadBalancer
from ray_configs.labels import GCP_SERVICE_ACCOUNT, LOAD_BALANCER_TYPE
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
    found = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": shared}]
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
    if exposure.internal:
        service = {"metadata": {"annotations": {LOAD_BALANCER_TYPE: "Internal"}}, **service}
    return service


def gateway_objects(service: Service, exposure: Gateway) -> list[dict[str, Any]]:
    """A Gateway, its route to Serve, and its health check."""
    backend = f"{service.name}-serve-svc"
    listener: dict[str, Any] = {"name": "http", "protocol": "HTTP", "port": 80}
    if exposure.certificate:
        listener = {
            "name": "https",
            "protocol": "HTTPS",
            "port": 443,
            "tls": {"mode": "Terminate", "certificateRefs": [{"name": exposure.certificate}]},
        }
    route: dict[str, Any] = {
        "parentRefs": [{"name": service.name}],
        "rules": [{"backendRefs": [{"name": backend, "port": SERVE_PORT}]}],
    }
    if exposure.hostname:
        route = {"hostnames": [exposure.hostname], **route}
    health = {"type": "HTTP", "httpHealthCheck": {"port": SERVE_PORT, "requestPath": "/-/healthz"}}
    target = {"group": "", "kind": "Service", "name": backend}
    found = {
        "gateway.networking.k8s.io/v1": {
            "Gateway": {"gatewayClassName": exposure.gateway_class, "listeners": [listener]},
            "HTTPRoute": route,
        },
        "networking.gke.io/v1": {
            "HealthCheckPolicy": {"default": {"config": health}, "targetRef": target},
            # A long answer streams for minutes; the load balancer's default limit is 30 seconds.
            "GCPBackendPolicy": {"default": {"timeoutSec": 3600}, "targetRef": target},
        },
    }
    return [
        kubernetes_object(api, kind, metadata(service), spec)
        for api, kinds in found.items()
        for kind, spec in kinds.items()
    ]
