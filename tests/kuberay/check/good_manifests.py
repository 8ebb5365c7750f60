"""Manifests that nothing is wrong with, as plain dictionaries, and how tests spoil them."""

import copy
import re
from typing import Any

from kuberay.check import Finding, check

REMOVED = object()
"""As the new value of a change: take the field out."""

Change = tuple[str, Any]
"""A path, keys and indices separated by spaces, and the value to put there."""

_SERVE_CONFIG = """\
proxy_location: EveryNode
http_options:
  host: 0.0.0.0
applications:
- name: llm
  route_prefix: /
  import_path: apps.llm:build
  deployments:
  - name: Model
    num_replicas: 2
    ray_actor_options:
      num_cpus: 1
      resources:
        TPU: 8
"""


def _container(name: str, cpu: str, memory: str, chips: int = 0) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory, **({"google.com/tpu": chips} if chips else {})}
    return {
        "name": name,
        "image": "rayproject/ray:2.60.0-py311",
        "env": [{"name": "LANGUAGE", "value": "pt"}],
        "ports": [{"containerPort": 8265, "name": "dashboard"}, {"containerPort": 8000, "name": "serve"}],
        "resources": {"limits": amounts, "requests": dict(amounts)},
    }


def _tpu_pod(accelerator: str, topology: str, chips: int, name: str = "ray-worker") -> dict[str, Any]:
    return {
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": accelerator,
            "cloud.google.com/gke-tpu-topology": topology,
        },
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [_container(name, "20", "40Gi", chips)],
    }


def _group(accelerator: str, topology: str, chips: int, hosts: int, labels: dict[str, str]) -> dict[str, Any]:
    pod = {**_tpu_pod(accelerator, topology, chips), "terminationGracePeriodSeconds": 150}
    pod["containers"][0]["env"].append({"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "125"})
    return {
        "groupName": "tpu",
        "numOfHosts": hosts,
        "replicas": 2,
        "minReplicas": 2,
        "maxReplicas": 2,
        "labels": labels,
        "rayStartParams": {},
        "template": {"spec": pod},
    }


def _cluster_spec(group: dict[str, Any]) -> dict[str, Any]:
    return {
        "rayVersion": "2.60.0",
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": 300},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": {"spec": {"containers": [_container("ray-head", "2", "8Gi")]}},
        },
        "workerGroupSpecs": [group],
    }


def _named(kind: str, name: str, api_version: str = "ray.io/v1") -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}


def service() -> list[dict[str, Any]]:
    """A RayService on two v5e slices of one host with eight chips."""
    labels = {"ray.io/accelerator-type": "TPU-V5LITEPOD", "ray.io/tpu-pod-type": "v5litepod-8"}
    spec = {
        "serveConfigV2": _SERVE_CONFIG,
        "upgradeStrategy": {"type": "None"},
        "rayClusterConfig": _cluster_spec(_group("tpu-v5-lite-podslice", "2x4", 8, 1, labels)),
    }
    return [{**_named("RayService", "llama"), "spec": spec}]


def wide_service() -> list[dict[str, Any]]:
    """A RayService on two v5e slices of four hosts with four chips each."""
    labels = {"ray.io/tpu-pod-type": "v5litepod-16", "ray.io/tpu-topology": "4x4"}
    group = _group("tpu-v5-lite-podslice", "4x4", 4, 4, labels)
    config = _SERVE_CONFIG.split("  deployments:")[0]
    spec = {"serveConfigV2": config, "upgradeStrategy": {"type": "None"}, "rayClusterConfig": _cluster_spec(group)}
    return [{**_named("RayService", "llama-wide"), "spec": spec}]


def cluster() -> list[dict[str, Any]]:
    """A RayCluster of fixed size with two v6e slices of four hosts."""
    group = _group("tpu-v6e-slice", "4x4", 4, 4, {"ray.io/accelerator-type": "TPU-V6E"})
    spec = _cluster_spec(group)
    del spec["enableInTreeAutoscaling"], spec["autoscalerOptions"]
    return [{**_named("RayCluster", "research"), "spec": spec}]


def ray_job() -> list[dict[str, Any]]:
    """A RayJob on one v4 host."""
    group = _group("tpu-v4-podslice", "2x2x1", 4, 1, {"ray.io/accelerator-type": "TPU-V4"})
    spec = {
        "entrypoint": "python smoke.py",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "rayClusterSpec": _cluster_spec(group),
    }
    return [{**_named("RayJob", "smoke"), "spec": spec}]


def cron_job() -> list[dict[str, Any]]:
    """A RayCronJob around the RayJob."""
    spec = {"schedule": "0 3 * * *", "timeZone": "Etc/UTC", "jobTemplate": ray_job()[0]["spec"]}
    return [{**_named("RayCronJob", "nightly"), "spec": spec}]


def job() -> list[dict[str, Any]]:
    """A Job on one v5e host with flex-start."""
    pod = _tpu_pod("tpu-v5-lite-podslice", "2x2", 4, "program")
    pod["nodeSelector"]["cloud.google.com/gke-flex-start"] = "true"
    spec = {"backoffLimit": 3, "template": {"spec": {**pod, "restartPolicy": "OnFailure"}}}
    return [{**_named("Job", "convert", "batch/v1"), "spec": spec}]


def indexed_job() -> list[dict[str, Any]]:
    """A Job on one v5e slice of eight hosts, with the headless Service that its hosts need."""
    pod = {**_tpu_pod("tpu-v5-lite-podslice", "4x8", 4, "program"), "restartPolicy": "Never", "subdomain": "train"}
    spec = {
        "completionMode": "Indexed",
        "completions": 8,
        "parallelism": 8,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    headless = {"clusterIP": "None", "selector": {"job-name": "train"}}
    return [
        {**_named("Service", "train", "v1"), "spec": headless},
        {**_named("Job", "train", "batch/v1"), "spec": spec},
    ]


def job_set() -> list[dict[str, Any]]:
    """Two slices of eight hosts, as a JobSet."""
    template = indexed_job()[1]["spec"]
    del template["template"]["spec"]["subdomain"], template["completionMode"]
    spec = {"replicatedJobs": [{"name": "slice", "replicas": 2, "template": {"spec": template}}]}
    return [{**_named("JobSet", "servers", "jobset.x-k8s.io/v1alpha2"), "spec": spec}]


def deployment() -> list[dict[str, Any]]:
    """A Deployment with one v6e host."""
    labels = {"app": "server"}
    template = {"metadata": {"labels": labels}, "spec": _tpu_pod("tpu-v6e-slice", "2x2", 4, "server")}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template, "strategy": {"type": "Recreate"}}
    return [{**_named("Deployment", "server", "apps/v1"), "spec": spec}]


ALL = (service, wide_service, cluster, ray_job, cron_job, job, indexed_job, job_set, deployment)


def changed(objects: list[dict[str, Any]], *changes: Change) -> list[dict[str, Any]]:
    """The objects with changes made; a path starts in the last object, or in the first of the kind it begins with."""
    objects = copy.deepcopy(objects)
    for path, value in changes:
        keys = path.split()
        target: Any = objects[-1]
        for item in objects:
            if item["kind"] == keys[0]:
                target, keys = item, keys[1:]
                break
        for key in keys[:-1]:
            target = target[int(key)] if isinstance(target, list) else target.setdefault(key, {})
        last = keys[-1]
        if value is REMOVED:
            del target[int(last) if isinstance(target, list) else last]
        elif isinstance(target, list):
            target[int(last) :] = [value, *target[int(last) + 1 :]]
        else:
            target[last] = value
    return objects


def grave(objects: list[Any]) -> list[Finding]:
    """Errors and warnings."""
    return [finding for finding in check(objects) if finding.severity != "note"]


def expect(objects: list[Any], rule: str, severity: str, where: str, *facts: str) -> Finding:
    """Asserts that this rule alone complains, and returns its first complaint.

    Args:
        where: how the complaint's place ends.
        facts: what the complaint must mention: values that were found or are to be written, issues. No sentences.
    """
    found = grave(objects)
    assert {finding.rule for finding in found} == {rule}, [f"{f.rule}: {f.where}: {f.why}" for f in found]
    assert found[0].severity == severity
    assert re.search(rf"(?<!\w){re.escape(where)}$", found[0].where), found[0].where
    mentions(found[:1], *facts)
    return found[0]


def mentions(findings: list[Finding], *facts: str) -> None:
    """Asserts that the findings say what to write, and together name the facts."""
    assert all(finding.instead for finding in findings)
    said = " ".join(finding.said for finding in findings)
    assert [fact for fact in facts if not re.search(rf"(?<![\w.]){re.escape(fact)}(?!\w)", said)] == [], said


def place(path: str) -> str:
    """The place of a finding about what is at a change's path, or below it."""
    keys = path.split()
    return "".join(f".{key}" if key.isidentifier() else f"[{key}]" for key in keys).removeprefix(".")
