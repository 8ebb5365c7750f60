"""When a delete hurries a head Pod: the operator's Pods as they are while a RayService goes."""

from typing import Any

import pytest
from night import Manifest, Night

from kuberay.cluster.delete import wait_until_gone


class Leaving:
    """A cluster in which a RayService is on its way out, and goes once its head has been told to hurry."""

    def __init__(self, night: Night, looks: int):
        self.night, self.looks, self.hurried = night, looks, list[str]()

    def get(self, live: Manifest) -> Manifest | None:
        self.looks -= 1
        return live if self.looks >= 0 and not self.hurried else None

    def list(self, api_version: str, kind: str, namespace: str, labels: str) -> list[Manifest]:
        assert labels == "ray.io/cluster in (llama-abcde)"
        return self.night.pods

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
    assert any("its head goes now" in line for line in said) == bool(hurried)
