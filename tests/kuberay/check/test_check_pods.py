"""Pod templates of the right types that the API server refuses all the same, or that never start."""

from typing import Any

import pytest

from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import changed

POD = "spec workerGroupSpecs 0 template spec"
BOX = f"{POD} containers 0"


def from_secret(**reference: str) -> dict[str, Any]:
    return {"name": "TOKEN", "valueFrom": {"secretKeyRef": reference}}


@pytest.mark.parametrize(
    ("path", "value", "rule", "words"),
    [
        (f"{POD} restartPolicy", "never", "wrong-value", ["'never' is not one of", "write Never"]),
        (f"{POD} dnsPolicy", "ClusterFirstHostNet", "wrong-value", ["write ClusterFirstWithHostNet"]),
        (f"{POD} terminationGracePeriodSeconds", -30, "wrong-value", ["is negative"]),
        (f"{BOX} imagePullPolicy", "IfNotPresents", "wrong-value", ["write IfNotPresent"]),
        (f"{BOX} ports 0 protocol", "HTTP", "wrong-value", ["not one of TCP, UDP, SCTP"]),
        (f"{BOX} ports 0 containerPort", 82650, "wrong-value", ["82650 is not a port"]),
        (f"{POD} nodeSelector pool", "large tpus", "wrong-value", ["'large tpus' is not a label value"]),
        (f"{POD} tolerations 0 operator", "Exist", "wrong-value", ["'Exist' is not one of", "write Exists"]),
        (f"{POD} tolerations 0 effect", "NoScheduling", "wrong-value", ["write NoSchedule"]),
        (f"{BOX} env 0", from_secret(name="hub", key=""), "wrong-value", ["is empty", "write key"]),
        (f"{BOX} env 0", from_secret(key="token"), "missing-field", ["name is required"]),
        (
            f"{BOX} env 0",
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIp"}}},
            "wrong-value",
            ["'status.podIp' is not a field", "write status.podIP"],
        ),
        (f"{BOX} resources requests memory", "1ki", "wrong-type", ["a quantity such as 4"]),
        (f"{BOX} livenessProbe", {"exec": {"command": ["true"]}, "periodSeconds": -1}, "wrong-value", ["is negative"]),
        (f"{BOX} livenessProbe", {"tcpSocket": {"port": 0}}, "wrong-value", ["0 is not a port"]),
    ],
)
def test_a_spoilt_pod(path: str, value: Any, rule: str, words: list[str]) -> None:
    found = [f for f in good.grave(changed(good.cluster(), (path, value))) if f.rule == rule]
    assert {f.severity for f in found} == {"error"}
    said = " ".join(f"{f.why} {f.instead}" for f in found)
    assert [word for word in words if word not in said] == [], said
    alone = {f.rule for f in good.grave(changed(good.cluster(), (path, value)))}
    assert alone <= {rule, "ray-version"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{POD} tolerations 1", {"operator": "Exists"}),
        (f"{POD} tolerations 1", {"key": "a", "value": "b"}),
        (f"{POD} tolerations 1", {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}),
        (f"{BOX} env 0", from_secret(name="hub", key="token")),
        (f"{BOX} env 0", {"name": "A", "value": "", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}),
        (f"{BOX} env 0", {"name": "A", "value": ""}),
        (f"{BOX} image", "us-docker.pkg.dev/PROJECT_ID/podslice/llm:0.1.0"),
        (f"{BOX} image", "localhost:5000/a__b/c-d.e@sha256:" + "0" * 64),
        (f"{BOX} image", "$REGISTRY/Image"),
        (f"{BOX} resources requests cpu", "500m"),
        (f"{BOX} livenessProbe", {"httpGet": {"port": "dashboard"}}),
        (f"{BOX} lifecycle", {"preStop": {"sleep": {"seconds": 5}}}),
        (f"{POD} volumes", [{"name": "a"}]),
    ],
)
def test_unusual_pods_that_are_fine(path: str, value: Any) -> None:
    assert good.grave(changed(good.cluster(), (path, value))) == []
