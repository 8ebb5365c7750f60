"""Fields that do not exist, are missing or have the wrong type."""

import os
from pathlib import Path
from typing import Any

import pytest

from kuberay.check import check
from kuberay.check.structure import schemas
from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import REMOVED, Change, changed
from tools.kubernetes_schemas import schemas as made_of
from tools.kubernetes_schemas import written

CRDS = Path(os.environ.get("PODSLICE_KUBERAY_CRDS") or Path(__file__).parents[5] / "shared" / "kuberay-crds")


GROUP = "spec workerGroupSpecs 0"
POD = f"{GROUP} template spec"
BOX = f"{POD} containers 0"


@pytest.mark.parametrize("manifest", good.ALL)
def test_good_manifests(manifest: Any) -> None:
    assert [finding for finding in check(manifest()) if finding.severity != "note"] == []


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        (("spec workerGroupSpec", []), "unknown-field", ["workerGroupSpecs"]),
        (("spec serveConfigV2", "a"), "unknown-field", ["RayServiceSpec"]),
        ((f"{GROUP} numOfHost", 4), "unknown-field", ["write numOfHosts"]),
        ((f"{GROUP} nodeSelector", {"a": "b"}), "unknown-field", ["move it", "PodSpec"]),
        ((f"{GROUP} template specs", {}), "unknown-field", ["write spec"]),
        ((f"{POD} nodeSelectors", {"a": "b"}), "unknown-field", ["write nodeSelector"]),
        ((f"{POD} toleration", []), "unknown-field", ["write tolerations"]),
        ((f"{BOX} resource", {}), "unknown-field", ["write resources"]),
        ((f"{BOX} resources limit", {}), "unknown-field", ["write limits"]),
        ((f"{BOX} volumeMount", []), "unknown-field", ["write volumeMounts"]),
        ((f"{BOX} env 0", {"name": "A", "values": "b"}), "unknown-field", ["write value"]),
        ((f"{BOX} readinessProbe", {"httpget": {}}), "unknown-field", ["write httpGet"]),
        (("spec headGroupSpec template spec tolerations", [{"keys": "a"}]), "unknown-field", ["write key"]),
        ((f"{BOX} env 0", {"name": "A", "value": 8265}), "wrong-type", ['"8265"', "quotes"]),
        ((f"{POD} nodeSelector cloud.google.com/gke-spot", True), "wrong-type", ['"true"']),
        ((f"{GROUP} rayStartParams", {"num-cpus": 4}), "wrong-type", ['"4"']),
        ((f"{GROUP} labels", {"tier": 1}), "wrong-type", ['"1"']),
        ((f"{GROUP} replicas", "2"), "wrong-type", ["remove the quotes"]),
        (("spec enableInTreeAutoscaling", "true"), "wrong-type", ["true or false", "remove the quotes"]),
        (("spec rayVersion", 2.6), "wrong-type", ['"2.6"']),
        ((f"{BOX} resources limits memory", "40 GB"), "wrong-type", ["quantity"]),
        ((f"{BOX} args", "python"), "wrong-type", ["a list is expected"]),
        ((f"{BOX} ports 0 containerPort", "8265"), "wrong-type", ["an integer"]),
        ((f"{BOX} name", REMOVED), "missing-field", ["name is required"]),
        ((f"{GROUP} template", REMOVED), "missing-field", ["template is required"]),
        ((f"{GROUP} groupName", REMOVED), "missing-field", ["groupName"]),
        (("spec headGroupSpec", REMOVED), "missing-field", ["headGroupSpec"]),
        (("spec upgradeStrategy type", "Recreated"), "wrong-value", ["write Recreate"]),
        (("spec authOptions mode", "tokens"), "wrong-value", ["write token"]),
        (("spec autoscalerOptions version", "V2"), "wrong-value", ["write v2"]),
    ],
)
def test_a_spoilt_structure(change: Change, rule: str, words: list[str]) -> None:
    structural = ("unknown-field", "wrong-type", "missing-field", "wrong-value")
    found = [f for f in check(changed(good.cluster(), change)) if f.rule in structural]
    assert [f.rule for f in found] == [rule], [f"{f.rule} {f.where}: {f.why}" for f in found]
    said = f"{found[0].why} {found[0].instead}"
    assert [word for word in words if word not in said] == [], said


def test_fields_beyond_the_everyday_ones() -> None:
    rare = (
        f"{POD} topologySpreadConstraints",
        [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}],
    )
    assert [f for f in check(changed(good.cluster(), rare)) if f.severity != "note"] == []
    typo = (f"{POD} topologySpreadConstraint", [])
    (found,) = [f for f in check(changed(good.cluster(), typo)) if f.severity != "note"]
    assert (found.rule, found.instead) == ("unknown-field", "write topologySpreadConstraints")


@pytest.mark.parametrize(
    ("objects", "path", "near"),
    [
        (good.indexed_job(), "spec completion", "completions"),
        (good.indexed_job(), "Service spec selectors", "selector"),
        (good.job(), "spec template spec restartpolicy", "restartPolicy"),
        (good.deployment(), "spec replica", "replicas"),
        (good.job_set(), "spec replicatedJobs 0 template spec parallel", "parallelism"),
    ],
)
def test_core_kinds(objects: list[Any], path: str, near: str) -> None:
    (found,) = [f for f in check(changed(objects, (path, "1"))) if f.severity != "note"]
    assert found.rule == "unknown-field"
    assert near in found.instead or "completionMode" in found.instead


def test_a_missing_timestamp_is_no_field() -> None:
    objects = changed(good.cluster(), (f"{GROUP} template metadata", {"creationTimestamp": None}))
    assert good.grave(objects) == []


@pytest.mark.skipif(not CRDS.is_dir(), reason="no CRD schemas: set PODSLICE_KUBERAY_CRDS")
def test_the_schemas_are_those_of_kuberay_and_kubernetes() -> None:
    assert schemas.__file__ is not None
    assert (Path(schemas.__file__).parent / "schemas.json").read_text() == written(made_of(CRDS))
