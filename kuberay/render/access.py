"""Service accounts of a config's Pods, and the ways in for its clients."""

from typing import Any

from kuberay.render.notes import noted
from kuberay.render.pods import Config
from kuberay.render.serve_config import SERVE_PORT
from ray_configs.exposure import Gateway, LoadBalancer
from ray_configs.labels import GCP_SERVICE_ACCOUNT, LOAD_BALANCER_TYPE
from ray_configs.service import Service


def metadata(config: Config, name: str | None = None, /, **more: dict[str, str]) -> dict[str, Any]:
    """Metadata of an object that belongs to the config."""
    labels = {"app.kubernetes.io/managed-by": "podslice", "app.kubernetes.io/instance": config.name}
    return {
        "name": name or config.name,
        "namespace": config.namespace,
        **more,
        "labels": labels | more.get("labels", {}),
    }


def service_accounts(config: Config) -> list[dict[str, Any]]:
    """The Kubernetes service accounts that act as an IAM service account (Workload Identity)."""
    identity = config.service_account
    if identity is None:
        return []
    email = f"{identity.service_account}@{config.cloud.project}.iam.gserviceaccount.com"
    annotations = {GCP_SERVICE_ACCOUNT: email}
    # Several configs of a namespace may share it: no instance label.
    shared = {
        "name": identity.service_account,
        "namespace": config.namespace,
        "labels": {"app.kubernetes.io/managed-by": "podslice"},
        "annotations": annotations,
    }
    found = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": shared}]
    if isinstance(config, Service) and config.head_account:
        own = metadata(config, config.head_account)
        own[noted("annotations", "For the head alone: its autoscaler may change Pods and RayClusters.")] = annotations
        found.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own})
    return found


def serve_service(exposure: LoadBalancer) -> dict[str, Any]:
    """The Service from which KubeRay makes NAME-serve-svc, in place of a ClusterIP on port 8000."""
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
    return [
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": metadata(service),
            "spec": {"gatewayClassName": exposure.gateway_class, "listeners": [listener]},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": metadata(service),
            "spec": route,
        },
        {
            "apiVersion": "networking.gke.io/v1",
            "kind": "HealthCheckPolicy",
            "metadata": metadata(service),
            "spec": {
                "default": {
                    "config": {
                        "type": "HTTP",
                        "httpHealthCheck": {"port": SERVE_PORT, "requestPath": "/-/healthz"},
                    }
                },
                "targetRef": {"group": "", "kind": "Service", "name": backend},
            },
        },
        {
            # A long answer streams for minutes; the load balancer's own limit is 30 seconds.
            "apiVersion": "networking.gke.io/v1",
            "kind": "GCPBackendPolicy",
            "metadata": metadata(service),
            "spec": {
                "default": {"timeoutSec": 3600},
                "targetRef": {"group": "", "kind": "Service", "name": backend},
            },
        },
    ]
