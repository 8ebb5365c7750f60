"""A cell that owns two slices of two hosts: a session of the tutorial's curls, and a slice that is lost under it."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from ray_configs.catalog.cell_v5e_4x8 import service as cell
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.services.deploying import Deployed, deployed, harness_only
from tests.kubernetes.services.traffic import Model, Traffic, count
from tests.kubernetes.services.waiting import SERVICE_S, until

NAMESPACE, MODEL = "cell-test", "/sax/test/spmd"
PATH = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test"
CURL = """\
curl --request {method} --header "Content-type: application/json" -s ${{LB_IP}}:${{PORT}}/{path} --data '{body}'
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * SERVICE_S)]


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Deployed]:
    with deployed(cluster, type(cell)(**dict(cell) | {"namespace": NAMESPACE})) as running:
        running.wait_until_ready()
        yield running


def curl(service: Deployed, method: str, path: str, **body: Any) -> Any:
    """What the command of the tutorial prints, as JSON."""
    host, port = service.url.removeprefix("http://").split(":")
    command = CURL.format(method=method, path=path, body=json.dumps(body))
    environment = {"LB_IP": host, "PORT": port, "PATH": "/usr/bin:/bin"}
    said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300, env=environment)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def wait_for_replicas(service: Deployed, count: int) -> None:
    def active() -> bool:
        return curl(service, "GET", "listcell", model=MODEL)["active_replicas"] == count

    until(f"{count} replicas of {MODEL} are active", active, SERVICE_S, every_s=0.5)


def test_a_session_of_the_tutorial(service: Deployed) -> None:
    assert service.url.endswith(":8888")
    published = curl(service, "POST", "publish", model=MODEL, model_path=PATH, checkpoint="None", replicas=2)
    answer = {"model": MODEL, "path": PATH, "checkpoint": "None", "replicas": 2}
    assert {key: published[key] for key in answer} == answer
    wait_for_replicas(service, 2)
    listed = curl(service, "GET", "listcell", model=MODEL)
    listed_as = {"model": MODEL, "model_path": PATH, "checkpoint": "None", "max_replicas": 2, "active_replicas": 2}
    assert {key: listed[key] for key in listed_as} == listed_as
    ((words, _),) = curl(service, "POST", "generate", model=MODEL, query="How many days are in a week?")[
        "generate_response"
    ]
    assert words
    model = Model(service.url, MODEL)
    assert count(100, model.complete, model.stream) == {"200": 100}
    assert "2 of 2 slices are up for what the cell publishes" in service.status


def test_a_lost_host_brings_its_slice_and_its_replica_back(service: Deployed) -> None:
    """Nobody publishes it again."""
    harness_only(service.cluster)
    model = Model(service.url, MODEL)
    before, pods_before = service.slices, len(service.pods)
    name, hosts = sorted(before.items())[0]
    old = {pod["metadata"]["uid"] for pod in hosts}
    with Traffic(model.complete) as traffic:
        service.kubectl("delete", "pod", hosts[-1]["metadata"]["name"], "--force", "--grace-period=0")
        wait_for_replicas(service, 1)  # before Serve notices, the cell still counts the replica without a host
        until(f"{name} is made anew", lambda: _all_new(service, name, old), SERVICE_S, every_s=1)
        wait_for_replicas(service, 2)
    print(f"\na host was lost: {traffic}")
    assert sorted(service.slices) == sorted(before)
    assert len(service.pods) == pods_before
    assert count(40, model.complete, model.stream) == {"200": 40}


def _all_new(service: Deployed, name: str, old: set[str]) -> bool:
    pods = service.slices.get(name, [])
    return len(pods) == 2 and not old & {pod["metadata"]["uid"] for pod in pods}


def test_unpublished_it_is_gone(service: Deployed) -> None:
    curl(service, "POST", "unpublish", model=MODEL)
    assert curl(service, "GET", "listall") == []
