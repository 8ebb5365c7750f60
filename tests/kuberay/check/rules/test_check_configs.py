"""What `check` says of a typed config: exposure, and machines that are too small or in another place."""

from typing import Any

import pytest

from kuberay.check import check
from kuberay.check.typed.machines import allocatable
from ray_configs.capacity import Reservation
from ray_configs.cloud import GoogleCloud, SecretKey
from ray_configs.cluster.deployed import Head
from ray_configs.exposure import ClusterIP, Gateway, LoadBalancer
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

KEYS = SecretKey(secret="keys", key="all")
PUBLIC = "gke-l7-global-external-managed"
ZONES = ("us-east5-a", "us-east5-b")


def service(config: dict[str, Any] | None = None, capacity: Any = None, **fields: Any) -> Service:
    app = Application(config=LLMConfig(**config or {}), **({"capacity": capacity} if capacity else {}))
    return Service(**{"name": "mine", "applications": (app,)} | fields)


def job(**fields: Any) -> Job:
    return Job(**{"name": "mine", "command": ("true",)} | fields)


def rules(config: Service | Job) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity) for finding in check((), config)]


@pytest.mark.parametrize(
    ("exposure", "found"),
    [
        (ClusterIP(), []),
        (LoadBalancer(internal=False), [("clear-keys", "warning")]),
        (LoadBalancer(), [("clear-keys", "note")]),
        (Gateway(gateway_class=PUBLIC), [("clear-keys", "warning")]),
        (Gateway(gateway_class=PUBLIC, certificate="tls"), []),
        (Gateway(certificate="tls"), [("proxy-only-subnet", "note")]),
    ],
)
def test_keys_in_clear_on_the_way(exposure: Any, found: list[tuple[str, str]]) -> None:
    assert rules(service(api_keys=KEYS, exposure=exposure)) == found


def test_keys_in_clear_in_the_manifest() -> None:
    assert rules(service(env={"PODSLICE_API_KEYS": "alice=k"})) == [("clear-secret", "error")]
    exposed = rules(service(env={"PODSLICE_API_KEYS": "alice=k"}, exposure=LoadBalancer(internal=False)))
    assert ("no-api-keys", "warning") not in exposed and ("clear-keys", "warning") in exposed


# GKE's page on node sizes has these examples: what is allocatable, before its own Pods.
@pytest.mark.parametrize(("machine", "cpus", "gib"), [("e2-standard-4", 3.92, 13.3), ("n1-standard-1", 0.94, 2.7)])
def test_what_a_machine_has_left(machine: str, cpus: float, gib: float) -> None:
    room = allocatable(machine)
    assert room is not None
    assert room[0] + 0.4 == pytest.approx(cpus, abs=0.02) and room[1] + 0.6 == pytest.approx(gib, abs=0.2)
    assert allocatable("my-own-machine") is None


def test_a_head_larger_than_its_machine() -> None:
    large = Head(cpus=8, memory_gb=32)
    assert rules(service(head=large)) == [("machine-size", "error")]
    assert rules(service(head=large, cloud=GoogleCloud(head_machine_type="n2-standard-16"))) == []
    assert rules(service(head=large, cloud=GoogleCloud(head_machine_type="m9-unheard-of"))) == []
    assert rules(job(cpus=16)) == [("machine-size", "error")]
    assert rules(job(cpus=4, memory_gb=16)) == []
    assert rules(service({"num_cpus": 12})) == [("machine-size", "error")]


@pytest.mark.parametrize("zones", [ZONES, ZONES[:1]])
def test_a_reservation_in_several_zones(zones: tuple[str, ...]) -> None:
    cloud, capacity = GoogleCloud(location="us-east5", zones=zones), Reservation(name="r1")
    found = [("reservation-zone", "error")] if len(zones) > 1 else []
    assert rules(service({"slice": "v6e:2x2"}, capacity, cloud=cloud)) == found
    assert rules(job(slice="v6e:2x2", capacity=capacity, cloud=cloud)) == found
    assert rules(job(slice="v6e:2x2", cloud=cloud)) == []


@pytest.mark.parametrize("location", ["us-east5", "us-east5-b"])
def test_a_zone_outside_its_region(location: str) -> None:
    cloud = GoogleCloud(location=location, zones=("us-east1-d",))
    assert rules(job(slice="v6e:2x2", cloud=cloud)) == [("zone-region", "error")]
    assert rules(job(slice="v6e:2x2", cloud=GoogleCloud(location=location, zones=("us-east5-c",)))) == []
