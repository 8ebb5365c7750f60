"""Pod templates of the right types that the API server refuses all the same, or that never start."""

from typing import Any

import pytest

from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import changed, expect

POD = "spec workerGroupSpecs 0 template spec"
BOX = f"{POD} containers 0"


def from_secret(**reference: str) -> dict[str, Any]:
    return {"name": "TOKEN", "valueFrom": {"secretKeyRef": reference}}


@pytest.mark.parametrize(
    ("path", "value", "rule", "facts"),
    [
        (f"{POD} restartPolicy", "never", "wrong-value", ["'never'", "Never"]),
        (f"{POD} dnsPolicy", "ClusterFirstHostNet", "wrong-value", ["ClusterFirstWithHostNet"]),
        (f"{POD} terminationGracePeriodSeconds", -30, "wrong-value", []),
        (f"{BOX} imagePullPolicy", "IfNotPresents", "wrong-value", ["IfNotPresent"]),
        (f"{BOX} ports 0 protocol", "HTTP", "wrong-value", ["TCP", "UDP", "SCTP"]),
        (f"{BOX} ports 0 containerPort", 82650, "wrong-value", ["82650"]),
        (f"{POD} nodeSelector pool", "large tpus", "wrong-value", ["'large tpus'"]),
        (f"{POD} tolerations 0 operator", "Exist", "wrong-value", ["'Exist'", "Exists"]),
        (f"{POD} tolerations 0 effect", "NoScheduling", "wrong-value", ["NoSchedule"]),
        (f"{POD} tolerations 0 value", "present", "toleration", ["Exists"]),
        (
            f"{BOX} env 0",
            {**from_secret(name="hub", key="token"), "value": "x"},
            "one-field",
            ["value", "valueFrom"],
        ),
        (f"{BOX} env 0", from_secret(name="hub", key=""), "wrong-value", ["key"]),
        (f"{BOX} env 0", from_secret(key="token"), "missing-field", ["name"]),
        (f"{BOX} env 0", {"name": "A", "valueFrom": {}}, "one-field", ["configMapKeyRef"]),
        (
            f"{BOX} env 0",
            {"name": "A", "valueFrom": {ref: {"name": "a", "key": "b"} for ref in ("secretKeyRef", "configMapKeyRef")}},
            "one-field",
            ["configMapKeyRef", "secretKeyRef"],
        ),
        (
            f"{BOX} env 0",
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIp"}}},
            "wrong-value",
            ["'status.podIp'", "status.podIP"],
        ),
        (f"{BOX} env 1", {"name": "LANGUAGE", "value": "pt"}, "env", ["LANGUAGE"]),
        (f"{BOX} env", [{"name": "HF_HOME", "value": value} for value in "ab"], "env", ["HF_HOME"]),
        (f"{BOX} image", "us-docker.pkg.dev/PROJECT_ID/My LLM:0.1.0", "image", ["InvalidImageName"]),
        (f"{BOX} envFrom", [{"prefix": "A_"}], "one-field", ["secretRef", "configMapRef"]),
        (f"{BOX} image", "rayproject/Ray image:2.60.0", "image", ["InvalidImageName"]),
        (f"{BOX} image", "rayproject/ray:2.60.0 ", "image", []),
        (f"{BOX} image", "rayproject/ray:2.60.0:gpu", "image", []),
        (f"{BOX} resources claims", [{"name": "tpus"}], "resources", ["tpus"]),
        (f"{BOX} resources requests memory", "1ki", "wrong-type", []),
        (f"{BOX} livenessProbe", {"periodSeconds": 5}, "one-field", ["httpGet"]),
        (
            f"{BOX} livenessProbe",
            {"exec": {"command": ["true"]}, "tcpSocket": {"port": 8265}},
            "one-field",
            ["exec", "tcpSocket", "httpGet"],
        ),
        (f"{BOX} livenessProbe", {"exec": {"command": ["true"]}, "periodSeconds": -1}, "wrong-value", []),
        (f"{BOX} livenessProbe", {"tcpSocket": {"port": 0}}, "wrong-value", ["0"]),
        (
            f"{BOX} livenessProbe",
            {"httpGet": {"port": "dashbord"}},
            "probe",
            ["dashbord", "dashboard"],
        ),
        (f"{BOX} lifecycle", {"preStop": {}}, "one-field", ["exec"]),
        (
            f"{POD} volumes",
            [{"name": "a", "emptyDir": {}, "secret": {"secretName": "b"}}],
            "one-field",
            ["emptyDir", "secret"],
        ),
    ],
)
def test_a_spoilt_pod(path: str, value: Any, rule: str, facts: list[str]) -> None:
    found = [f for f in good.grave(changed(good.cluster(), (path, value))) if f.rule == rule]
    assert {f.severity for f in found} == {"error"}
    assert [f.where for f in found if good.place(path) not in f.where] == []
    good.mentions(found, *facts)
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


def test_a_claim_that_the_pod_has() -> None:
    claims = (f"{POD} resourceClaims", [{"name": "tpus", "resourceClaimTemplateName": "slice"}])
    assert good.grave(changed(good.cluster(), claims, (f"{BOX} resources claims", [{"name": "tpus"}]))) == []
    typo = changed(good.cluster(), claims, (f"{BOX} resources claims", [{"name": "tpu"}]))
    expect(typo, "resources", "error", "claims[0].name", "tpus")


def test_a_variable_twice_outside_of_ray() -> None:
    """Kubernetes takes the later one; only server-side apply refuses."""
    box = "spec template spec containers 0"
    twice = changed(good.deployment(), (f"{box} env 1", {"name": "LANGUAGE", "value": "es"}))
    expect(twice, "env", "warning", "env[1].name")
