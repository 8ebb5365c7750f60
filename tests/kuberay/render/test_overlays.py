"""What a platform adds to Pods and containers is merged last, as Kubernetes merges it, and checked like the rest."""

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from pydantic import ValidationError

from kuberay.check import check
from kuberay.local.hosts import plan_of
from kuberay.render import render
from kuberay.render.overlay import MERGE_KEYS, merged
from ray_configs.cloud import SecretKey
from ray_configs.cluster.deployed import Head
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from tests.kuberay.render.rendered import cluster

POD: dict[str, Any] = {
    "metadata": {"labels": {"team": "search"}, "annotations": {"sidecar.istio.io/inject": "false"}},
    "spec": {
        "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"key": "team", "operator": "Equal", "value": "search", "effect": "NoSchedule"}],
        "containers": [{"name": "agent", "image": "agent:1"}],
        "volumes": [{"name": "ca", "configMap": {"name": "ca"}}, {"name": "dshm", "emptyDir": {"sizeLimit": "1G"}}],
    },
}
CONTAINER: dict[str, Any] = {
    "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    "securityContext": {"allowPrivilegeEscalation": False},
}


def a_service(**more: Any) -> Service:
    app = Application(config=LLMConfig(model="m", slice="v6e:4x4", max_replicas=2), pod=POD, container=CONTAINER)
    return Service(name="s", applications=(app,), head=Head(pod=POD, container=CONTAINER), **more)


def test_lists_are_merged_by_kubernetes_own_keys() -> None:
    """Oracle: x-kubernetes-patch-merge-key in Kubernetes' own schemas."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema/v1.36.0-local"
    found = {}
    for kind in ("podspec-v1", "container-v1", "resourcerequirements-v1"):
        if (file := folder / f"{kind}.json").exists():
            for name, field in json.loads(file.read_text())["properties"].items():
                if key := field.get("x-kubernetes-patch-merge-key"):
                    found[name] = key
                elif len(keys := field.get("x-kubernetes-list-map-keys", ())) == 1:
                    found[name] = keys[0]
    assert len(found) > 10 and found.items() <= MERGE_KEYS.items()
    assert set(MERGE_KEYS) - set(found) <= {"claims"}


def test_head_and_workers_get_what_is_added_and_keep_what_was_there() -> None:
    plain = Service(name="s", applications=(Application(config=LLMConfig(model="m", slice="v6e:4x4", max_replicas=2)),))
    before, after = cluster(plain), cluster(a_service())
    pairs = zip(
        [before["headGroupSpec"], *before["workerGroupSpecs"]], [after["headGroupSpec"], *after["workerGroupSpecs"]]
    )
    for one, other in pairs:
        was, pod = one["template"], other["template"]
        assert pod["metadata"]["labels"] == {**was["metadata"]["labels"], "team": "search"}
        spec = pod["spec"]
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["tolerations"] == [*was["spec"].get("tolerations", []), *POD["spec"]["tolerations"]]
        assert [box["name"] for box in spec["containers"]] == [was["spec"]["containers"][0]["name"], "agent"]
        ray = spec["containers"][0]
        assert ray["env"] == [*was["spec"]["containers"][0]["env"], *CONTAINER["env"]]
        assert {mount["mountPath"] for mount in ray["volumeMounts"]} == {"/dev/shm", "/ca"}
        (shared,) = (volume for volume in spec["volumes"] if volume["name"] == "dshm")
        assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "1G"}
    assert after["autoscalerOptions"]["securityContext"] == {"allowPrivilegeEscalation": False}


@pytest.mark.parametrize(
    "config",
    [
        a_service(),
        Job(name="j", command=("a",), slice="v6e:4x4", pod=POD, container=CONTAINER),
        Job(name="j", command=("a",), slice="v6e:4x4", ray=True, pod=POD, head=Head(pod=POD, container=CONTAINER)),
    ],
    ids=["service", "job", "ray-job"],
)
def test_the_result_is_valid_to_check_and_to_kubernetes(config: Service | Job) -> None:
    """Oracle: kubernetes-validate, strict, for Pods; `check` for the rest."""
    objects = render(config)
    assert not [finding for finding in check(objects, config) if finding.severity == "error"]
    (main,) = (item for item in objects if item["kind"] in ("RayService", "Job", "RayJob"))
    spec = main["spec"]
    ray = spec.get("rayClusterConfig") or spec.get("rayClusterSpec")
    templates = [spec["template"]] if ray is None else [ray["headGroupSpec"]["template"]]
    templates += [group["template"] for group in (ray or {}).get("workerGroupSpecs", ())]
    templates += [spec["submitterPodTemplate"]] if "submitterPodTemplate" in spec else []
    for template in templates:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **template.get("metadata", {})}}
        kubernetes_validate.validate(pod | {"spec": template["spec"]}, "1.36", strict=True)
        assert {"name": "registry"} in template["spec"]["imagePullSecrets"]


@pytest.mark.parametrize(
    ("pod", "container", "rule"),
    [
        ({"spec": {"imagePullSecret": [{"name": "a"}]}}, {}, "unknown-field"),
        ({"spec": {"tolerations": [{"key": "a", "operator": "Is"}]}}, {}, "wrong-value"),
        ({"spec": {"hostNetwork": "yes"}}, {}, "wrong-type"),
        ({"spec": {"nodeSelector": {"a": "b c"}}}, {}, "wrong-value"),
        ({}, {"securityContext": {"runAsUsr": 1}}, "unknown-field"),
        (
            {},
            {"env": [{"name": "A", "value": "b", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            "one-field",
        ),
        ({"spec": {"containers": "none"}}, {}, None),
    ],
)
def test_what_kubernetes_would_refuse_is_found(pod: Any, container: Any, rule: str | None) -> None:
    def configs() -> list[Service | Job]:
        app = Application(config=LLMConfig(model="m", slice="v6e:4x4"), pod=pod, container=container)
        plain = Application(config=LLMConfig(model="m", slice="v6e:4x4"))
        return [
            Service(name="s", applications=(app,)),
            Service(name="s", applications=(plain,), head=Head(pod=pod, container=container)),
            Job(name="j", command=("a",), slice="v6e:4x4", pod=pod, container=container),
        ]

    if rule is None:
        with pytest.raises(ValidationError, match="must be a list of containers"):
            configs()
        return
    for config in configs():
        assert rule in {found.rule for found in check(render(config), config) if found.severity == "error"}


def test_what_is_not_an_overlay_is_refused_with_the_right_place() -> None:
    with pytest.raises(ValidationError, match=r"'tolerations' is not a part of a Pod template: write \{'spec'"):
        Head(pod={"tolerations": []})
    with pytest.raises(ValidationError, match="'name' cannot change"):
        Head(container={"name": "other"})
    apps = [Application(config=LLMConfig(model="m", slice="v6e:2x2"), name=n, route_prefix=f"/{n}") for n in "ab"]
    with pytest.raises(ValidationError, match="different machine type, capacity, image, zones, pod or container"):
        Service(name="s", applications=(apps[0], apps[1].model_copy(update={"pod": POD})))
    kinds = [LLMConfig(model="m", slice=slice, routers=1) for slice in ("v6e:2x2", "v6e:4x4")]
    routed = [Application(config=kind, name=n, route_prefix=f"/{n}") for kind, n in zip(kinds, "ab")]
    with pytest.raises(ValidationError, match="two applications use router workers"):
        Service(name="s", applications=(routed[0], routed[1].model_copy(update={"pod": POD})))
    *_, group = Service(name="s", applications=tuple(routed)).worker_groups
    assert (group.name, group.minimum, group.maximum) == ("routers", 2, 2)


def test_none_deletes_and_another_source_replaces() -> None:
    base = {"a": {"b": 1, "c": 2}, "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]}
    overlay = {"a": {"b": None}, "env": [{"name": "X", "value": "1"}]}
    assert merged(base, overlay) == {"a": {"c": 2}, "env": [{"name": "X", "value": "1"}]}
    assert base["a"] == {"b": 1, "c": 2}, "what was rendered is not changed"


def test_a_variable_may_come_from_any_secret_here_and_there() -> None:
    config = a_service(env={"PLAIN": "1", "AWS_KEY": SecretKey(secret="aws", key="id")})
    group = cluster(config)["workerGroupSpecs"][0]
    env = {entry["name"]: entry for entry in group["template"]["spec"]["containers"][0]["env"]}
    assert env["AWS_KEY"] == {"name": "AWS_KEY", "valueFrom": {"secretKeyRef": {"name": "aws", "key": "id"}}}
    (manifest,) = (item for item in render(config) if item["kind"] == "RayService")
    plan = plan_of(manifest, address="127.0.0.1", environment={"AWS_KEY": "mine"})
    assert plan.hosts[1].env["AWS_KEY"] == "mine" and plan.absent == ("TOKEN",)
