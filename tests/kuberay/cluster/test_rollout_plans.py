"""What of a change comes about, worked out from plain objects: the same spellings, the numbers, what would stop."""

from copy import deepcopy
from typing import Any

import pytest

from kuberay.cluster.rollout import Rollout, plan
from kuberay.cluster.rollout.ownership import as_admitted, harmless
from kuberay.cluster.rollout.sameness import differences, same
from kuberay.cluster.status.state import Phase
from tests.kuberay.cluster.night import CLUSTER, GROUP, Manifest, Night, group, service

APP = "- {name: llm, import_path: 'apps.llm:build', args: {slice: 'v4:2x2x1', max_num_seqs: 8}}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"cpu": "1000m", "memory": "1Gi"}, {"cpu": "1", "memory": "1024Mi"}),
        ({"memory": "1000M"}, {"memory": "1G"}),
        ({"groups": [{"groupName": "a"}]}, {"groups": [{"groupName": "a", "scaleStrategy": {}}]}),
        ([{"containerPort": 8000}], [{"containerPort": 8000, "protocol": "TCP"}]),
        ([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}]),
        ({"env": []}, {}),
        ({"port": 8000}, {"port": "8000"}),
    ],
)
def test_the_same_in_other_words(one: Any, other: Any) -> None:
    assert same(one, other) and same(other, one)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": {"image": "x:1"}}, {"a": {"image": "x:2"}}, [("a.image", "x:1", "x:2")]),
        ([{"name": "A", "value": "1"}], [{"name": "A", "value": "2"}], [("[A].value", "1", "2")]),
        ([{"name": "A"}], [], [("[A]", {"name": "A"}, None)]),
        ({"on": False}, {"on": True}, [("on", False, True)]),
        ({"version": "2.60"}, {"version": "2.6"}, [("version", "2.60", "2.6")]),
        ({}, {"automountServiceAccountToken": False}, [("automountServiceAccountToken", None, False)]),
        ({"num-cpus": "0"}, {}, [("num-cpus", "0", None)]),
        ({"cpu": "1"}, {"cpu": "2"}, [("cpu", "1", "2")]),
        ({"cpu": "1"}, {"cpu": {"a": 1}}, [("cpu", "1", {"a": 1})]),
    ],
)
def test_what_differs(before: Any, after: Any, found: list[Any]) -> None:
    assert list(differences(before, after)) == found


def planned(before: Manifest, after: Manifest, **live: Manifest) -> Rollout:
    """For a live RayService with its Ray cluster, which is as `before` says."""
    night = Night(before)
    found = {"RayCluster": {CLUSTER: deepcopy(night.ray_cluster)}, "Service": live}
    return plan(before, after, lambda kind, name: found[kind].get(name))


def changed(before: Manifest, **fields: Any) -> Manifest:
    after = deepcopy(before)
    after["spec"]["rayClusterConfig"]["workerGroupSpecs"][0] |= fields
    return after


def test_nothing_changes() -> None:
    assert planned(service(), service()) == Rollout()
    assert plan(None, service(), lambda kind, name: None) == Rollout()


def test_numbers_are_patched_item_by_item() -> None:
    (step,) = planned(service(), changed(service(), replicas=3, maxReplicas=8)).steps
    assert step.words == f"group {GROUP}: replicas 1 -> 3, maxReplicas 4 -> 8"
    assert step.patch == (
        {"op": "test", "path": "/spec/workerGroupSpecs/0/groupName", "value": GROUP},
        {"op": "add", "path": "/spec/workerGroupSpecs/0/replicas", "value": 3},
        {"op": "add", "path": "/spec/workerGroupSpecs/0/maxReplicas", "value": 8},
    )


@pytest.mark.parametrize(
    ("now", "least", "most", "patched"), [(2, 0, 4, None), (2, 3, 4, 3), (4, 0, 3, 3), (0, 0, 4, None)]
)
def test_the_autoscalers_number_stays_within_its_bounds(now: int, least: int, most: int, patched: int | None) -> None:
    before = service(group(replicas=now))
    before["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"] = True
    steps = planned(before, changed(before, replicas=least, minReplicas=least, maxReplicas=most)).steps
    replicas = [item["value"] for step in steps for item in step.patch if item["path"].endswith("/replicas")]
    assert replicas == ([] if patched is None else [patched])


def test_what_is_not_rolled_out() -> None:
    after = service()
    config = after["spec"]["rayClusterConfig"]
    config["rayVersion"] = "2.61.0"
    config["workerGroupSpecs"][0]["template"]["spec"]["containers"][0] |= {"image": "ray:2.61", "env": []}
    assert planned(service(), after).messages == (
        "not rolled out: rayVersion: 2.60.0 -> 2.61.0",
        f"not rolled out: group {GROUP} containers[ray].image: ray:2.60 -> ray:2.61",
        f"not rolled out: group {GROUP} containers[ray].env[A]: there -> not there",
    )


@pytest.mark.parametrize(
    ("asked", "stops"),
    [
        ({"max_num_seqs: 8": "max_num_seqs: 16"}, False),
        ({"v4:2x2x1": "v4:2x2x2"}, True),
        ({"name: llm": "name: another", "v4:2x2x1": "v4:2x2x2"}, True),
        ({}, False),
    ],
)
def test_what_would_stop(asked: dict[str, str], stops: bool) -> None:
    """Arguments that need slices which the running Ray cluster does not have, and the new manifest would."""
    text = APP
    for old, new in asked.items():
        text = text.replace(old, new)
    shape = {"cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice", "cloud.google.com/gke-tpu-topology": "2x2x2"}
    after = service(group("tpu-v4-2x2x2", hosts=2, selector=shape), applications=text)
    before = service(applications=APP)
    assert bool(planned(before, after).stops) == stops
    after["spec"]["upgradeStrategy"] = {"type": "NewCluster"}
    assert planned(before, after).stops == ()
    assert "starts a new Ray cluster" in planned(before, after).messages[0]


@pytest.mark.parametrize(
    ("manager", "theirs", "queued", "is_disputed"),
    [
        ("kuberay-operator", "other", False, False),  # its write-back, of a list that we are about to change
        ("kubectl-edit", "other", False, True),
        ("kubectl-edit", "ours", False, False),
        ("kueue", "other", True, False),
        ("kueue", "other", False, True),
    ],
)
def test_whose_a_field_is(manager: str, theirs: str, queued: bool, is_disputed: bool) -> None:
    metadata = {"labels": {"kueue.x-k8s.io/queue-name": "q"}} if queued else {}
    live, after = ({"spec": {"x": value}, "metadata": metadata} for value in (theirs, "ours"))
    assert harmless(frozenset({manager}), live, after) == (not is_disputed)


def test_what_admission_wrote_is_kept_and_nothing_else() -> None:
    ours, live = service(), service()
    live["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    live["spec"]["rayClusterConfig"]["suspend"] = False
    template = live["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]
    template["spec"] |= {"tolerations": [{"key": "queued"}], "nodeName": "edited"}
    kept = as_admitted(ours, live)
    spec = kept["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    assert spec["tolerations"] == [{"key": "queued"}] and "nodeName" not in spec
    assert kept["spec"]["rayClusterConfig"]["suspend"] is False
    assert as_admitted(ours, service()) is ours


def test_status_says_what_the_running_cluster_does_not_do() -> None:
    night = Night()
    night.head()
    night.worker()
    night.status(True, "RUNNING")
    night.ray_cluster = deepcopy(night.ray_cluster)
    config = night.service["spec"]["rayClusterConfig"]
    config["workerGroupSpecs"][0]["replicas"] = 4
    config["rayVersion"] = "2.61.0"
    (workload,) = night.state().workloads
    assert workload.phase == Phase.READY
    assert workload.verdict == (
        f"llama is ready: 1 of 1 slices serve; not rolled out: group {GROUP}: replicas 1 -> 4 (and 1 more)"
    )
    assert "not rolled out: rayVersion: 2.60.0 -> 2.61.0" in workload.details


def test_pods_older_than_their_ray_cluster() -> None:
    night = Night()
    for pod in (night.head(), night.worker()):
        pod["spec"]["containers"] = [{"name": "ray", "image": "ray:2.59"}]
    night.status(True, "RUNNING")
    (workload,) = night.state().workloads
    assert "; its Pods are older than its spec (1 of the head: ray:2.59, its spec says ray:2.60)" in workload.verdict
    assert workload.verdict.endswith("(and 1 more)")
