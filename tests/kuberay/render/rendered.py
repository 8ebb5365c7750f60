"""Services made in a line, and what is found in the objects that they render to."""

from typing import Any

from kuberay.render import render
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service


def service(
    slice: str | None = "v6e:4x4", capacity: Any = None, replicas: tuple[int, int] = (1, 2), **more: Any
) -> Service:
    config = LLMConfig(model="model", slice=slice, min_replicas=replicas[0], max_replicas=replicas[1])
    application = Application(config=config) if capacity is None else Application(config=config, capacity=capacity)
    return Service(name="example", applications=(application,), **more)


def of_kind(config: Service | Job, kind: str) -> list[dict[str, Any]]:
    return [item for item in render(config) if item["kind"] == kind]


def cluster(config: Service) -> dict[str, Any]:
    (ray_service,) = of_kind(config, "RayService")
    return ray_service["spec"]["rayClusterConfig"]


def worker_pod(config: Service) -> dict[str, Any]:
    return cluster(config)["workerGroupSpecs"][0]["template"]["spec"]


def pod_templates(config: Service | Job) -> list[dict[str, Any]]:
    found = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "containers" in value:
                found.append(value)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(render(config))
    return found
