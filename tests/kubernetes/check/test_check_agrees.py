"""What the API server, KubeRay's operator and the TPU webhook refuse, `check` refuses before; what they take, it takes.

All objects are applied to one namespace at once, and the answers are read when all are there.
"""

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kuberay.check import check
from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import REMOVED, changed
from tests.kubernetes.clusters import Cluster

Objects = list[dict[str, Any]]
GROUP = "spec workerGroupSpecs 0"
POD = f"{GROUP} template spec"
BOX = f"{POD} containers 0"
CLUSTER = "spec rayClusterConfig"
JOB = "spec template spec"
TOKEN = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
PROBE = {"exec": {"command": ["true"]}}
SIDECAR = {"name": "a", "image": "b", "ports": [{"name": "dashboard", "containerPort": 9}]}
TWO_SOURCES = {"emptyDir": {}, "hostPath": {"path": "/a"}}
WAIT_S = 90


def variable(**origin: Any) -> dict[str, Any]:
    return {"name": "A", "valueFrom": origin}


@dataclass(frozen=True, eq=False)
class Case:
    """Objects with one thing changed; who refuses them says `words`, and `check` finds `rule`."""

    kind: Any
    path: str
    value: Any
    words: str = ""
    rule: str = ""
    severity: str = "error"

    @property
    def objects(self) -> Objects:
        return changed(self.kind(), (self.path, self.value))

    def __str__(self) -> str:
        return f"{self.kind.__name__} {self.path.removeprefix('spec ')}"


REFUSED = (
    # By the API server, when they are applied.
    Case(good.cluster, f"{GROUP} numOfHost", 4, "numOfHost", "unknown-field"),
    Case(good.cluster, f"{GROUP} replicas", "2", "replicas", "wrong-type"),
    Case(good.cluster, f"{POD} nodeSelector cloud.google.com/gke-spot", True, "gke-spot", "wrong-type"),
    Case(good.cluster, f"{BOX} name", REMOVED, "name", "missing-field"),
    Case(good.cluster, f"{BOX} env 1", {"name": "LANGUAGE", "value": "pt"}, "LANGUAGE", "env"),
    Case(good.cluster, "spec upgradeStrategy", {"type": "Recreated"}, "Recreated", "wrong-value"),
    Case(good.job, f"{JOB} tolerations 0 operator", "Exist", "Exist", "wrong-value"),
    Case(good.job, f"{JOB} containers 0 resources requests google.com/tpu", 2, "google.com/tpu", "tpu-requests"),
    Case(good.deployment, "spec selector", REMOVED, "selector", "missing-field"),
    Case(good.deployment, f"{JOB} containers 0 env 0", {**TOKEN, "value": "x"}, "valueFrom", "one-field"),
    # By the API server again, when the operator makes Pods of what was stored unread.
    Case(good.cluster, f"{POD} tolerations 0 operator", "Exist", "Exist", "wrong-value"),
    Case(good.cluster, f"{POD} tolerations 1", {"key": "a", "operator": "Gt", "value": "1"}, '"Gt"', "wrong-value"),
    Case(good.cluster, f"{POD} tolerations 0 value", "present", "value", "toleration"),
    Case(good.cluster, f"{POD} nodeSelector pool", "large tpus", "large tpus", "wrong-value"),
    Case(good.cluster, f"{POD} dnsPolicy", "ClusterFirstHostNet", "dnsPolicy", "wrong-value"),
    Case(good.cluster, f"{POD} volumes", [{"name": "a", **TWO_SOURCES}], "more than 1 volume", "one-field"),
    Case(good.cluster, f"{BOX} volumeMounts", [{"name": "a", "mountPath": "/a"}], "volumeMounts", "volume"),
    Case(good.cluster, f"{BOX} env 0", {**TOKEN, "value": "x"}, "may not be specified", "one-field"),
    Case(good.cluster, f"{BOX} env 0", variable(secretKeyRef={"name": "a", "key": ""}), "key: Required", "wrong-value"),
    Case(good.cluster, f"{BOX} env 0", variable(fieldRef={"fieldPath": "status.podIp"}), "supported", "wrong-value"),
    Case(good.cluster, f"{BOX} envFrom", [{"prefix": "A_"}], "envFrom", "one-field"),
    Case(good.cluster, f"{BOX} image", "rayproject/ray:2.60.0 ", "whitespace", "image"),
    Case(good.cluster, f"{BOX} imagePullPolicy", "Sometimes", "Sometimes", "wrong-value"),
    Case(good.cluster, f"{BOX} ports 0 containerPort", 82650, "65535", "wrong-value"),
    Case(good.cluster, f"{BOX} ports 0 name", "a-name-of-18-chars", "15 characters", "wrong-value"),
    Case(good.cluster, f"{BOX} resources claims", [{"name": "tpus"}], "claims", "resources"),
    Case(good.cluster, f"{BOX} livenessProbe", {"periodSeconds": 5}, "handler", "one-field"),
    Case(good.cluster, f"{BOX} livenessProbe", {**PROBE, "tcpSocket": {"port": 1}}, "handler", "one-field"),
    Case(good.cluster, f"{BOX} lifecycle", {"preStop": {}}, "handler", "one-field"),
    # Where the account may exist already, `check` cannot know.
    Case(good.cluster, f"{POD} serviceAccountName", "nobody", "error looking up", "service-account", "note"),
    # By the TPU webhook.
    Case(good.cluster, f"{GROUP} numOfHosts", 3, "not equal to specified topology", "tpu-hosts"),
    Case(good.service, f"{CLUSTER} workerGroupSpecs 0 numOfHosts", 2, "not equal to specified topology", "tpu-hosts"),
)  # fmt: skip
TAKEN = (
    Case(good.cluster, f"{POD} tolerations 1", {"operator": "Exists"}),
    Case(good.cluster, f"{POD} volumes", [{"name": "a"}]),
    Case(good.cluster, f"{BOX} env 0", {**TOKEN, "value": ""}),
    Case(good.cluster, f"{BOX} livenessProbe", {"httpGet": {"port": "dashboard"}}),
    Case(good.cluster, f"{BOX} resources requests memory", "1Gi"),
    Case(good.cluster, "spec headGroupSpec template spec containers 1", SIDECAR),
    Case(good.service, "spec serveService", {"spec": {"ports": [{"name": "serve", "port": 80, "targetPort": 8000}]}}),
    Case(good.job, f"{JOB} tolerations 0", {"key": "a", "value": "b"}),
    Case(good.indexed_job, f"{JOB} affinity", {"podAffinity": {}}),
)  # fmt: skip
CASES = (*REFUSED, *TAKEN)


@pytest.fixture(scope="module")
def answers(control_plane: Cluster) -> Iterator[dict[Case, str]]:
    """What the cluster has to say against each case; nothing against those that it takes."""
    namespace = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", namespace)
    names = {case: f"case-{number:02}" for number, case in enumerate(CASES)}
    said = {}
    for case, name in names.items():
        text = "\n".join(json.dumps(_named(item, name)) for item in case.objects)
        done = control_plane.kubectl("-n", namespace, "apply", "--server-side", "-f", "-", input=text, check=False)
        said[case] = done.stderr if done.returncode else ""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and not _settled(control_plane, namespace, names, said):
        time.sleep(1)
    yield said
    control_plane.kubectl("delete", "namespace", namespace, "--wait=false")


def _named(item: dict[str, Any], name: str) -> dict[str, Any]:
    item["metadata"]["name"] = name
    return item


def _settled(cluster: Cluster, namespace: str, names: dict[Case, str], said: dict[Case, str]) -> bool:
    """Adds the warnings of the operator to what was said. True once it has answered every case, by those or by Pods."""

    def items(kind: str) -> Objects:
        return json.loads(cluster.kubectl("-n", namespace, "get", kind, "-o", "json").stdout)["items"]

    warnings = [e for e in items("events") if e["type"] == "Warning" and e["reason"] != "FailedScheduling"]
    for case, name in names.items():
        messages = [event["message"] for event in warnings if event["involvedObject"]["name"].startswith(name)]
        # The operator may make an object again that its cache does not show yet.
        said[case] = said[case] or "\n".join(text for text in messages if not text.endswith("already exists"))
    alive = {pod["metadata"]["name"][: len("case-00")] for pod in items("pods")}
    return all(said[case] for case in REFUSED) and alive >= {names[case] for case in TAKEN}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_the_cluster_refuses_check_refuses(case: Case, answers: dict[Case, str]) -> None:
    assert case.words in answers[case], answers[case]
    assert case.rule in {finding.rule for finding in check(case.objects) if finding.severity == case.severity}


@pytest.mark.parametrize("case", TAKEN, ids=str)
def test_what_the_cluster_takes_check_takes(case: Case, answers: dict[Case, str]) -> None:
    assert answers[case] == ""
    assert [finding for finding in check(case.objects) if finding.severity == "error"] == []
