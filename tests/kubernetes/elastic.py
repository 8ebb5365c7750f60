"""A service whose slices of two hosts come and go: Serve's autoscaling, Ray's autoscaler beside the head, the operator.

Only Serve's and Ray's patience is shorter than what is rendered.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from ray_configs.catalog.spmd_175b import service as spmd
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.services.deploying import Deployed, deployed, with_fields
from tests.kubernetes.services.traffic import Model
from tests.kubernetes.services.waiting import SERVICE_S, until

NAMESPACE, MODEL, TPU, CPU = "scaling-test", "/sax/test/spmd", "tpu-v5e-2x4-4t", "cpu-v5e-2x4-4t"
MOST = 2
IDLE_S = 60
SERVE = {"min_replicas": 0, "max_replicas": MOST, "target_ongoing_requests": 1, "upscale_delay_s": 5}
SERVE |= {"downscale_delay_s": 30, "downscale_to_zero_delay_s": 3600, "look_back_period_s": 20}


@contextmanager
def elastic_service(cluster: Cluster, **fields: Any) -> Iterator[Deployed]:
    """Ready; without routers, it has no slice.

    Args:
        fields: the model's, where they differ; `zero_after_s`: then Serve scales as they say, and not by SERVE.
    """
    app = spmd.applications[0]
    fields = {"min_replicas": 0, "max_replicas": MOST, "routers": 0, "drain_timeout_s": 10} | fields
    config = with_fields(app.config, **fields)
    elastic = with_fields(spmd, namespace=NAMESPACE, applications=(app.model_copy(update={"config": config}),))
    with deployed(cluster, elastic, change=_idle_soon if "zero_after_s" in fields else _hasty) as running:
        running.wait_until_ready()
        yield running


def _idle_soon(objects: list[dict[str, Any]]) -> None:
    for item in objects:
        if item["kind"] == "RayService":
            item["spec"]["rayClusterConfig"]["autoscalerOptions"]["idleTimeoutSeconds"] = IDLE_S


def _hasty(objects: list[dict[str, Any]]) -> None:
    """So that nobody needs to wait a quarter of an hour for Serve and Ray to find that a slice is idle."""
    _idle_soon(objects)
    for item in objects:
        if item["kind"] == "RayService":
            config = yaml.safe_load(item["spec"]["serveConfigV2"])
            config["applications"][0]["deployments"] = [{"name": "LLMServer", "autoscaling_config": SERVE}]
            item["spec"]["serveConfigV2"] = yaml.safe_dump(config)


class Watch:
    """Looks every second how many slices there are, and keeps the most that there were, and all hosts."""

    def __init__(self, service: Deployed):
        self._service, self._over = service, threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self.replicas = self.slices = 0
        self.hosts: set[str] = set()
        """Their Pods' uids: one that is made anew is another."""

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._over.wait(1):
            self.replicas = max(self.replicas, group(self._service, TPU)["replicas"])
            slices = self._service.slices
            self.slices = max(self.slices, len(slices))
            self.hosts |= uids([pod for pods in slices.values() for pod in pods])


def group(service: Deployed, name: str) -> dict[str, Any]:
    (cluster,) = service.items("rayclusters")
    return next(one for one in cluster["spec"]["workerGroupSpecs"] if one["groupName"] == name)


def wait(said: str, what: Callable[[], bool]) -> None:
    until(said, what, SERVICE_S, every_s=2)


def uids(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def one_replica(service: Deployed, model: Model) -> None:
    """As the test before leaves it; alone, a test has it made."""
    if service.running_replicas("llm") == 0:
        assert model.complete(timeout_s=SERVICE_S) == "200"


def settle() -> None:
    """The autoscaler has looked again at everything, some times."""
    threading.Event().wait(1.5 * IDLE_S)
