"""The complaints that people file most often about TPUs on Ray and GKE: where a manifest causes one, a rule says so."""

from typing import Any

import pytest

from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import REMOVED, Change, changed

GROUP = "spec rayClusterConfig workerGroupSpecs 0"
BOX = f"{GROUP} template spec containers 0"


def env(name: str, value: str) -> Change:
    return (f"{BOX} env 0", {"name": name, "value": value})


BUNDLES = """\
applications:
- name: llm
  import_path: apps.llm:build
  deployments:
  - name: Model
    placement_group_bundles: [{CPU: 1, TPU: 4}, {TPU: 4}, {TPU: 4}, {TPU: 4}]
"""
CACHE: list[Change] = [
    (f"{GROUP} template spec volumes", [{"name": "b", "csi": {"driver": "gcsfuse.csi.storage.gke.io"}}]),
    (f"{BOX} volumeMounts", [{"name": "b", "mountPath": "/data"}]),
    env("VLLM_XLA_CACHE_PATH", "/data/xla"),
]

COMPLAINTS: dict[str, tuple[list[Change], str, list[str]]] = {
    "requests go to hosts without a Serve proxy": (
        [(f"{BOX} readinessProbe", {"httpGet": {"path": "/api/healthz", "port": 52365}})],
        "serve-readiness",
        ["kuberay#1808"],
    ),
    "slices of several hosts do not scale from zero": (
        [(f"{GROUP} minReplicas", 0)],
        "autoscaler-multi-host",
        ["ray#39781", "ray#38595"],
    ),
    "a placement group of Serve knows no slices": (
        [("spec serveConfigV2", BUNDLES)],
        "serve-slices",
        ["ray#63101", "ray#63179"],
    ),
    "the hosts of a slice are not scaled as one": (
        [("spec rayClusterConfig autoscalerOptions version", "v1")],
        "autoscaler-multi-host",
        ["kuberay#3552", "ray#48212"],
    ),
    "two hosts have one TPU_WORKER_ID": ([env("TPU_WORKER_ID", "0")], "tpu-env", ["ai-on-gke#858"]),
    "TPU_WORKER_HOSTNAMES are cut short": ([("metadata name", "s" * 40)], "name-multi-host", ["ai-on-gke PR#972"]),
    "an upgrade needs all TPUs twice": (
        [("spec upgradeStrategy", REMOVED)],
        "upgrade-capacity",
        ["kuberay#1476", "#2274", "#4239"],
    ),
    "JAX hangs on stale MEGASCALE variables": ([env("MEGASCALE_SLICE_ID", "0")], "megascale-env", ["ray#62893"]),
    "JAX_PLATFORMS=tpu crashes": ([env("JAX_PLATFORMS", "tpu")], "jax-platforms", ["Unknown backend cpu"]),
    "hosts race for one compilation cache": (CACHE, "compile-cache", []),
    "token authentication of services": (
        [("spec rayClusterConfig authOptions enableK8sTokenAuth", True)],
        "auth",
        ["kuberay#2586"],
    ),
}
"""Left out, since no manifest shows them: what an engine's own code does across hosts (vllm#12179, #11260, #14650,
kuberay#4366), and the versions of packages inside an image."""


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_a_complaint_is_explained(complaint: str) -> None:
    changes, rule, issues = COMPLAINTS[complaint]
    found = good.grave(changed(good.wide_service(), *changes))
    explained: list[Any] = [finding for finding in found if finding.rule == rule]
    assert explained, [finding.rule for finding in found]
    assert all(any(issue in finding.why for finding in explained) for issue in issues)
    assert all(finding.instead for finding in explained)
