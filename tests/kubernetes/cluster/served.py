"""A service as `render` makes it, its live objects, and changes of them as others make them."""

import json
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from kuberay.render import render
from kuberay.source import Placeholders
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from tests.kubernetes.clusters import Cluster

Manifest = dict[str, Any]
RunCommand = Callable[..., tuple[int, str, str]]
NAME = "llama"
WAIT_S = 60


def rendered(slice: str = "v5e:2x4:8t", replicas: int = 2, routers: int | None = 0, **more: Any) -> list[Manifest]:
    """A service of one model on so many slices, without a namespace of its own.

    None: as many `routers` as that has by default; else there is one group of workers, or also theirs."""
    model = LLMConfig(model="demo", slice=slice, min_replicas=replicas, max_replicas=replicas, routers=routers)
    service = Service(name=NAME, applications=(Application(config=model),), **more)
    objects = Placeholders(project="p", bucket="b").fill(render(service))
    for item in objects:
        del item["metadata"]["namespace"]
    return deepcopy(objects)


def ray_service(objects: list[Manifest]) -> Manifest:
    return next(item for item in objects if item["kind"] == "RayService")


def groups(objects: list[Manifest]) -> list[Manifest]:
    return ray_service(objects)["spec"]["rayClusterConfig"]["workerGroupSpecs"]


def container(objects: list[Manifest]) -> Manifest:
    return groups(objects)[0]["template"]["spec"]["containers"][0]


def write(path: Path, objects: list[Manifest]) -> Path:
    path.write_text(yaml.safe_dump_all(json.loads(json.dumps(objects)), sort_keys=False))
    return path


def live(cluster: Cluster, namespace: str, kind: str, name: str = NAME) -> Manifest:
    return json.loads(cluster.kubectl("-n", namespace, "get", kind, name, "--show-managed-fields", "-o", "json").stdout)


def there(cluster: Cluster, namespace: str, kinds: str) -> list[str]:
    return cluster.kubectl("-n", namespace, "get", kinds, "-o", "name").stdout.split()


def until(what: str, look: Callable[[], Any]) -> Any:
    """What `look` finds, once it finds something."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not after {WAIT_S} s")


def ray_cluster(cluster: Cluster, namespace: str) -> Manifest:
    """The Ray cluster that the operator made, once its status names it."""

    def look() -> Manifest | None:
        status = live(cluster, namespace, "rayservice").get("status") or {}
        name = (status.get("pendingServiceStatus") or {}).get("rayClusterName")
        name = name or (status.get("activeServiceStatus") or {}).get("rayClusterName")
        made = there(cluster, namespace, "rayclusters")
        return live(cluster, namespace, "raycluster", name) if name and f"raycluster.ray.io/{name}" in made else None

    return until("a Ray cluster", look)


def as_active(cluster: Cluster, namespace: str) -> str:
    """Makes the pending Ray cluster the active one, as the operator would once it serves; returns its name."""
    name = ray_cluster(cluster, namespace)["metadata"]["name"]
    status = {"activeServiceStatus": {"rayClusterName": name}, "pendingServiceStatus": {"rayClusterName": ""}}
    patch(cluster, namespace, "rayservice", NAME, {"status": status}, "--subresource=status")
    return name


def patch(cluster: Cluster, namespace: str, kind: str, name: str, change: Any, *options: str) -> None:
    how = "json" if isinstance(change, list) else "merge"
    text = json.dumps(change)
    cluster.kubectl("-n", namespace, "patch", kind, name, f"--type={how}", f"--patch={text}", *options)
