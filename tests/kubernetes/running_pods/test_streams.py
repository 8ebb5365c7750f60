"""Sixteen mixed streams of `podslice local`'s drills, on the operator, while slices are lost, preempted and upgraded.

The oracle is the undisturbed answer. The environment's DRILL_TIMES (1) says how often each is done, every time once
the service is whole again.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kuberay.local.drill.streams import STREAMS, DrillCounts, Streams
from kuberay.render import to_yaml
from ray_configs.capacity import Spot
from ray_configs.cloud import GoogleCloud
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.services.deploying import Deployed, deployed, harness_only, manifest_of, with_fields
from tests.kubernetes.services.waiting import SERVICE_S, until

TIMES = int(os.environ.get("DRILL_TIMES", 1))
MODEL = LLMConfig(model="meta-llama/Meta-Llama-3-8B", slice="v5e:2x4:4t", min_replicas=2, max_replicas=2)
CONFIG = Service(
    name="streams",
    namespace="streams-test",
    applications=(Application(config=MODEL, capacity=Spot()),),
    cloud=GoogleCloud(project="some-project"),
)
Record = Callable[[str, object], None]
pytestmark = [pytest.mark.long, pytest.mark.timeout((1 + TIMES) * SERVICE_S)]


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Deployed]:
    with deployed(cluster, CONFIG) as running:
        running.wait_until_ready()
        running.wait_for_replicas(2)
        yield running


@pytest.fixture
def counts(service: Deployed, request: pytest.FixtureRequest, record_property: Record) -> Iterator[DrillCounts]:
    """Of the streams that are asked for as long as a test goes on. None is lost, and none wrong."""
    harness_only(service.cluster)
    counts = DrillCounts()
    streams = Streams(service.url, MODEL.served_name, None, counts)
    streams.record()
    streams.start()
    yield counts
    streams.stop()
    until("the last streams have ended", lambda: not streams.running, SERVICE_S)
    record_property("counts", str(counts))
    print(f"\n{request.node.name}: {counts}")
    assert (counts.lost, counts.wrong) == (0, 0), streams.failures
    assert counts.kills == TIMES
    assert len(service.slices) == 2, "no slice more than there were"


def more_answers(counts: DrillCounts, count: int = STREAMS) -> None:
    """Wait until so many more streams have been answered whole."""
    wanted = counts.answers + count
    until("streams are answered", lambda: counts.answers >= wanted, SERVICE_S)


@pytest.mark.parametrize("notice", [False, True], ids=["lost", "preempted"])
def test_a_slice_goes(service: Deployed, counts: DrillCounts, notice: bool) -> None:
    """All of its Pods at once: without a word, or with their grace period."""
    for _ in range(TIMES):
        more_answers(counts)
        name, hosts = sorted(service.slices.items())[counts.kills % 2]
        old = {pod["metadata"]["uid"] for pod in hosts}
        pods = [pod["metadata"]["name"] for pod in hosts]
        service.kubectl("delete", "pod", *pods, *(["--wait=false"] if notice else ["--force", "--grace-period=0"]))
        counts.kills += 1
        until(f"{name} is whole again", lambda name=name, old=old: _is_new(service, name, old), SERVICE_S, every_s=1)
        service.wait_for_replicas(2)


def _is_new(service: Deployed, name: str, old: set[str]) -> bool:
    pods = service.slices.get(name, [])
    new = [pod for pod in pods if pod["metadata"]["uid"] not in old and pod["status"].get("phase") == "Running"]
    return len(new) == len(pods) == 2


def test_a_new_version(service: Deployed, counts: DrillCounts, tmp_path: Path) -> None:
    """In place: Serve replaces each of its processes. What changes has no part in an answer."""
    file = tmp_path / "upgraded.yaml"
    for number in range(TIMES):
        more_answers(counts)
        changed = with_fields(MODEL, drain_timeout_s=MODEL.drain_timeout_s + 1 + number)
        config = with_fields(CONFIG, applications=(Application(config=changed, capacity=Spot()),))
        file.write_text(to_yaml(manifest_of(config)))
        # Applied with kubectl at first, which therefore owns its fields.
        service.cluster.podslice("apply", str(file), "--force-conflicts", timeout=SERVICE_S)
        counts.kills += 1
        until("Serve begins", lambda: service.application("llm").get("status") == "DEPLOYING", SERVICE_S, every_s=1)
        until("Serve has ended", lambda: service.application("llm").get("status") == "RUNNING", SERVICE_S, every_s=2)
        service.wait_for_replicas(2)
