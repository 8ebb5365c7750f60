"""Node pools take the Pods of their own config and capacity alone. Oracle: Kubernetes' rule of taints and tolerations
(kube-scheduler's TaintToleration and NodeAffinity), applied to what the scripts say and what is rendered.
"""

import itertools
import json
import re
from typing import Any

import pytest

from kuberay.node_pools import commands, teardown, terraform
from kuberay.render import render
from ray_configs.capacity import Capacity, FlexStart, OnDemand, Queued, Reservation, Spot
from ray_configs.cloud import GoogleCloud
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

CAPACITIES = (OnDemand(), Spot(), Reservation(name="r"), FlexStart(), Queued())
ZONAL = GoogleCloud(location="us-east5-b")


def a_service(capacity: Capacity, name: str = "chat", namespace: str = "default") -> Service:
    config = LLMConfig(slice="v6e:4x4", min_replicas=1, max_replicas=1)
    return Service(
        name=name, namespace=namespace, cloud=ZONAL, applications=(Application(config=config, capacity=capacity),)
    )


def a_job(capacity: Capacity, name: str = "work", ray: bool = False) -> Job:
    return Job(name=name, command=("a",), slice="v6e:4x4", capacity=capacity, cloud=ZONAL, ray=ray)


CONFIGS = [
    *(a_service(capacity) for capacity in CAPACITIES),
    *(a_service(capacity, "search") for capacity in CAPACITIES),
    *(a_service(capacity, "chat", "staging") for capacity in (OnDemand(), Spot())),
    *(a_job(capacity) for capacity in CAPACITIES),
    *(a_job(capacity, "ray", True) for capacity in (OnDemand(), Spot())),
]
GKE_LABELS = {
    "spot": {"cloud.google.com/gke-spot": "true"},
    "flex-start": {"cloud.google.com/gke-flex-start": "true"},
    "queued": {"cloud.google.com/gke-flex-start": "true"},
    "reservation": {"cloud.google.com/reservation-name": "r"},
}
"""What GKE itself puts on nodes."""


def node(config: Service | Job) -> dict[str, Any]:
    """A node of the config's pool: its labels and taints, with GKE's."""
    (flags,) = re.findall(r"node-pools create .*?\nfi", commands(config), re.DOTALL)
    said = {
        name: dict(pair.removesuffix(":NoSchedule").split("=") for pair in value.split(","))
        for name, value in re.findall(r"--node-(labels|taints)=(\S+)", flags)
    }
    kind = config.worker_groups[0].capacity.kind
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        **GKE_LABELS.get(kind, {}),
        **said["labels"],
    }
    taints = {"google.com/tpu": "present", **({"cloud.google.com/gke-queued": "true"} if kind == "queued" else {})}
    return {"labels": labels, "taints": taints | said["taints"]}


def pod(config: Service | Job) -> dict[str, Any]:
    """The spec of a Pod on the config's slices."""
    (main,) = (item for item in render(config) if item["kind"] in ("RayService", "Job", "RayJob"))
    spec = main["spec"]
    cluster = spec.get("rayClusterConfig") or spec.get("rayClusterSpec")
    template = cluster["workerGroupSpecs"][0]["template"] if cluster else spec["template"]
    return template["spec"]


def fits(pod: dict[str, Any], node: dict[str, Any]) -> bool:
    def tolerated(key: str, value: str) -> bool:
        return any(
            one.get("key") in (None, key) and (one.get("operator") == "Exists" or one.get("value") == value)
            for one in pod.get("tolerations", ())
        )

    wanted = pod.get("nodeSelector", {}).items()
    return wanted <= node["labels"].items() and all(tolerated(*taint) for taint in node["taints"].items())


def test_a_pod_fits_its_own_pool_and_no_other() -> None:
    nodes, pods = [node(config) for config in CONFIGS], [pod(config) for config in CONFIGS]
    for (i, one), (j, other) in itertools.product(enumerate(pods), enumerate(nodes)):
        assert fits(one, other) == (i == j), (CONFIGS[i].owner, i, CONFIGS[j].owner, j)


def test_pods_run_on_pools_that_were_made_by_hand_or_before() -> None:
    """Those have none of our taints."""
    for config in CONFIGS:
        old = node(config)
        old["taints"] = {key: value for key, value in old["taints"].items() if not key.startswith("podslice")}
        assert fits(pod(config), old)


def test_terraform_binds_as_the_script_does() -> None:
    for config in CONFIGS:
        pools = json.loads(terraform(config))["resource"]["google_container_node_pool"]
        (body,) = (pool["node_config"] for name, pool in pools.items() if name != "default-pool")
        said = node(config)
        assert body["labels"].items() <= said["labels"].items()
        taints = {taint["key"]: taint["value"] for taint in body["taint"]}
        assert len(taints) == 2 and taints.items() <= said["taints"].items()
        assert {taint["effect"] for taint in body["taint"]} == {"NO_SCHEDULE"}


def test_owners_are_label_values_that_differ() -> None:
    names = ("a" * 47, "a" * 46 + "b")
    owners = [a_service(OnDemand(), "x", "n" * 62 + last).owner for last in "ab"]
    owners += [a_job(OnDemand(), name).owner for name in names]
    assert len(set(owners)) == 4
    for owner in owners:
        assert re.fullmatch(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]", owner)


OWNER = """
gcloud() {
  case "$*" in
    *" describe "*"podslice-owner"*) echo "$POOL_OWNED_BY" ;;
    *) command gcloud "$@" ;;
  esac
}
"""


@pytest.mark.parametrize(
    ("owner", "bind", "status", "updates", "said"),
    [
        ("default.chat", "", 0, 0, ""),
        ("default.other", "yes", 1, 0, "belongs to default.other"),
        ("", "", 0, 0, "BIND_POOLS=yes"),
        ("", "yes", 0, 2, ""),
    ],
)
def test_a_pool_that_is_there_is_bound_only_on_request(run, owner, bind, status, updates, said) -> None:
    script = OWNER + commands(a_service(Spot()))
    ran = run(script, found=True, POOL_OWNED_BY=owner, **({"BIND_POOLS": bind} if bind else {}))
    assert ran.status == status, ran.said
    assert not ran.made("container node-pools create")
    found = ran.made("container node-pools update")
    assert len(found) == updates and said in ran.said
    if found:  # as gcloud has it: one kind of change in a call
        assert found[0].flags["node-taints"].split(",") == [
            "podslice-owner=default.chat:NoSchedule",
            "podslice-capacity=spot:NoSchedule",
        ]
        assert found[1].flags["node-labels"] == "podslice-owner=default.chat,podslice-capacity=spot"


@pytest.mark.parametrize(("owner", "deleted"), [("default.chat", 1), ("default.other", 0), ("", 1)])
def test_deleting_spares_the_pool_of_another(run, owner: str, deleted: int) -> None:
    ran = run(OWNER + teardown(a_service(Spot())), POOL_OWNED_BY=owner)
    assert ran.status == 0, ran.said
    assert len(ran.made("container node-pools delete")) == deleted
