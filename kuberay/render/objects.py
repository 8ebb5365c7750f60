"""The parts that all Kubernetes objects share: kind, and metadata that name the config."""

from typing import Any

from kuberay.render.ray.pods import Config

MANAGED = {"app.kubernetes.io/managed-by": "podslice"}


def kubernetes_object(api: str, kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """An object of `api`, its group and version."""
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def metadata(config: Config, name: str | None = None, /, **more: dict[str, str]) -> dict[str, Any]:
    """Metadata of an object that belongs to the config."""
    labels = MANAGED | {"app.kubernetes.io/instance": config.name} | more.get("labels", {})
    return {"name": name or config.name, "namespace": config.namespace, **more, "labels": labels}
