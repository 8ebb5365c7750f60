"""When a delete hurries a head Pod: the operator's Pods as they are while a RayService goes."""

from typing import Any

import pytest

from kuberay.cluster.delete import wait_until_gone
from tests.kuberay.cluster.night import Manifest, Night


class Leaving:
    """A cluster in which a RayService and its Pods are on their way out, and go once the head was told to hurry."""

    def __init__(self, night: Night, looks: int):
        self.night, self.looks, self.hurried = night, looks, list[str]()

    @property
    def gone(self) -> bool:
        return self.looks < 0 or bool(self.hurried)

    def get(self, live: Manifest) -> Manifest | None:
        self.looks -= 1
        return None if self.gone else live

    def list(self, api_version: str, kind: str, namespace: str, labels: str) -> list[Manifest]:
        assert labels == "ray.io/cluster in (llama-abcde)"
        return [] if self.gone else self.night.pods

    def namespace_of(self, live: Manifest) -> str:
        return "default"

    def delete(self, pod: Manifest, propagation: str, grace_s: int) -> bool:
        assert grace_s == 1
        self.hurried.append(pod["metadata"]["name"])
        return True


@pytest.mark.parametrize(
    ("worker", "leaving", "hurried"), [(False, True, ["llama-head"]), (True, True, []), (False, False, [])]
)
def test_only_a_head_that_leaves_and_has_no_worker(worker: bool, leaving: bool, hurried: list[str]) -> None:
    night = Night()
    head = night.head()
    if worker:
        night.worker()
    if leaving:
        head["metadata"]["deletionTimestamp"] = "2026-01-01T02:14:00Z"
    cluster: Any = Leaving(night, looks=2)
    said: list[str] = []
    wait_until_gone(cluster, [night.service], 60, said.append)
    assert cluster.hurried == hurried
    assert any("terminating its head now" in line for line in said) == bool(hurried)


def test_a_job_on_a_cluster_that_stays_is_gone_at_once() -> None:
    """Its status names that cluster, whose Pods are nothing to wait for."""
    night = Night()
    night.head()
    night.worker()
    spec = {"clusterSelector": {"ray.io/cluster": "llama-abcde"}}
    metadata = {"name": "job", "namespace": "default", "uid": "of-the-job"}
    job = {"kind": "RayJob", "metadata": metadata, "spec": spec, "status": {"rayClusterName": "llama-abcde"}}

    class Staying(Leaving):
        gone = False

        def get(self, live: Manifest) -> Manifest | None:
            return None

    cluster: Any = Staying(night, looks=2)
    said: list[str] = []
    wait_until_gone(cluster, [job], 0.01, said.append)
    assert said == ["RayJob job: gone"] and not cluster.hurried
