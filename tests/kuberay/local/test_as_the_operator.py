"""The emulation against what the real operator, and GKE's webhook, made of the same objects.

Recorded RayServices are read as `local` reads a rendered one; the Pods recorded beside each are what must come out.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kuberay.local.hosts import GCS_PORT, HEAD_GROUP, Host, HostsPlan, plan_of

ADDRESS = "127.31.64.1"
"""Of all hosts here. There, each has its own, and a name."""
RECORDED = Path(__file__).parents[2] / "kubernetes" / "recorded"
FILES = [file for file in sorted(RECORDED.glob("*/*.json")) if json.loads(file.read_text())["rayservices"]]
AGENT_PORT, METRICS_PORT = 52365, 8080
NOT_EMULATED = {
    "KUBERAY_GEN_RAY_START_CMD",  # what the command says is held against the hosts below
    "RAY_USAGE_STATS_EXTRA_TAGS",  # which operator it is
    "RAY_AUTH_MODE",  # a token for the run alone: see Plan.token
    "RAY_AUTH_TOKEN",
}
DEVICE_PLUGINS = {"TPU_TOPOLOGY", "TPU_ACCELERATOR_TYPE"}
"""Not in a Pod's object: GKE's device plugin sets them when the container starts."""


@pytest.fixture(params=FILES, ids=lambda file: f"{file.stem}-{file.parent.name}")
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    return json.loads(request.param.read_text())


def planned(recorded: dict[str, Any]) -> HostsPlan:
    (ray_service,) = recorded["rayservices"]
    secrets = {name: f"the {name}" for name in ("HF_TOKEN", "PODSLICE_API_KEYS")}
    return plan_of(ray_service, address=ADDRESS, environment=secrets)


def container(pod: dict[str, Any]) -> dict[str, Any]:
    return pod["spec"]["containers"][0]


def name_of(pod: dict[str, Any]) -> str:
    """What the Pod's host is called here: as the webhook numbers slices and hosts."""
    labels = pod["metadata"]["labels"]
    if labels["ray.io/node-type"] == "head":
        return "head"
    replica, host = labels["ray.io/worker-group-replica-index"], labels.get("ray.io/replica-host-index", "0")
    return f"{labels['ray.io/group']}-{replica}-{host}"


def pairs(recorded: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Host]]:
    hosts = {host.name: host for host in planned(recorded).hosts}
    pods = {name_of(pod): pod for pod in recorded["pods"]}
    assert hosts.keys() == pods.keys() and len(pods) == len(recorded["pods"])
    for name, pod in pods.items():
        yield pod, hosts[name]


def at_one_address(text: str, recorded: dict[str, Any]) -> str:
    """With the names of this run's cluster and hosts in place of the recorded ones."""
    (cluster,) = recorded["rayclusters"]
    name, service = cluster["metadata"]["name"], recorded["rayservices"][0]["metadata"]["name"]
    if f".{name}-headless" in text:
        return ",".join([ADDRESS] * len(text.split(",")))
    for full in (f"{name}-head-svc.default.svc.cluster.local", f"{name}-head-svc", "127.0.0.1"):
        text = text.replace(full, ADDRESS)
    return text.replace(name, service)


def environment(pod: dict[str, Any], recorded: dict[str, Any]) -> dict[str, str]:
    """The container's variables, with sources resolved as a kubelet would."""
    labels = pod["metadata"]["labels"]
    fields = {
        "metadata.labels['ray.io/cluster']": labels["ray.io/cluster"],
        "metadata.labels['ray.io/group']": labels["ray.io/group"],
        "metadata.name": name_of(pod),
        "metadata.namespace": "default",
        "status.hostIP": ADDRESS,
    }
    env: dict[str, str] = {}
    for entry in container(pod)["env"]:
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            value = f"the {entry['name']}"
        else:
            value = entry.get("value", "").replace("$(TPU_DEVICE_PLUGIN_HOST_IP)", ADDRESS)
        env[entry["name"]] = at_one_address(value, recorded)
    return env


def test_there_is_a_host_for_each_pod(recorded: dict[str, Any]) -> None:
    for pod, host in pairs(recorded):
        labels = pod["metadata"]["labels"]
        assert labels["ray.io/group"] == host.group
        assert host.labels.items() <= labels.items(), "the group's labels are the Pod's too"
        assert int(container(pod)["resources"]["limits"].get("google.com/tpu", 0)) == host.chips
        if "hostname" in pod["spec"]:
            assert pod["spec"]["hostname"] == host.name


def start_command(host: Host, gcs: str, elastic: bool) -> str:
    """What the operator has the Pod's container run, to the letter, if it sees the host as we do.

    Args:
        gcs: HOST:PORT of the head.
        elastic: whether the autoscaler runs beside the head, in a container of its own.
    """
    params = {
        "block": "",
        "dashboard-agent-listen-port": str(AGENT_PORT),
        "memory": str(host.memory),
        "metrics-export-port": str(METRICS_PORT),
        "num-cpus": str(host.cpus),
    }
    if host.group == HEAD_GROUP:
        params |= {"dashboard-host": "0.0.0.0"} | ({"no-monitor": ""} if elastic else {})
    else:
        params["address"] = gcs
    if host.chips:
        params["resources"] = f"'{{\"TPU\":{host.chips}}}'"
    if host.labels:
        params["labels"] = ",".join(f"{name}={value}" for name, value in sorted(host.labels.items()))
    words = (f" --{name}={value} " if value else f" --{name} " for name, value in sorted(params.items()))
    return "ray start " + ("--head " if host.group == HEAD_GROUP else "") + "".join(words)


def test_each_is_started_with_the_same_command(recorded: dict[str, Any]) -> None:
    for pod, host in pairs(recorded):
        (script,) = container(pod)["args"]
        command = at_one_address(script.partition("; ")[2], recorded)
        elastic = recorded["rayservices"][0]["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"]
        assert start_command(host, f"{ADDRESS}:{GCS_PORT}", elastic) == command


def test_each_has_the_same_environment(recorded: dict[str, Any]) -> None:
    for pod, host in pairs(recorded):
        seen = {name: value for name, value in host.env.items() if name not in NOT_EMULATED | DEVICE_PLUGINS}
        theirs = {name: value for name, value in environment(pod, recorded).items() if name not in NOT_EMULATED}
        assert seen == theirs
        mode = environment(pod, recorded).get("RAY_AUTH_MODE", "disabled")
        assert (mode == "token") == planned(recorded).token


def test_hosts_find_each_other_by_name_where_there_are_several(recorded: dict[str, Any]) -> None:
    headless = [item for item in recorded["services"] if item["metadata"]["name"].endswith("-headless")]
    assert bool(headless) == any("TPU_WORKER_HOSTNAMES" in host.env for host in planned(recorded).hosts)


def test_the_ports_of_the_head_are_those_that_its_service_has(recorded: dict[str, Any]) -> None:
    (head,) = [item for item in recorded["services"] if item["metadata"]["name"].endswith("-head-svc")]
    ports = {port["name"]: port["port"] for port in head["spec"]["ports"]}
    assert ports["gcs"] == GCS_PORT and int(planned(recorded).head.env["RAY_PORT"]) == GCS_PORT
    probe = container(recorded["pods"][0])["livenessProbe"]["httpGet"]
    assert probe["port"] == AGENT_PORT, "what the command says is what the operator asks"
