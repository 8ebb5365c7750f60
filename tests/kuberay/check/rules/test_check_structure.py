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
    ("change", "rule", "facts"),
    [
        (("spec workerGroupSpec", []), "unknown-field", ["workerGroupSpecs"]),
        (("spec serveConfigV2", "a"), "unknown-field", ["RayServiceSpec"]),
        ((f"{GROUP} numOfHost", 4), "unknown-field", ["numOfHosts"]),
        ((f"{GROUP} nodeSelector", {"a": "b"}), "unknown-field", ["PodSpec"]),
        ((f"{GROUP} template specs", {}), "unknown-field", ["spec"]),
        ((f"{POD} nodeSelectors", {"a": "b"}), "unknown-field", ["nodeSelector"]),
        ((f"{POD} toleration", []), "unknown-field", ["tolerations"]),
        ((f"{BOX} resource", {}), "unknown-field", ["resources"]),
        ((f"{BOX} resources limit", {}), "unknown-field", ["limits"]),
        ((f"{BOX} volumeMount", []), "unknown-field", ["volumeMounts"]),
        ((f"{BOX} env 0", {"name": "A", "values": "b"}), "unknown-field", ["value"]),
        ((f"{BOX} readinessProbe", {"httpget": {}}), "unknown-field", ["httpGet"]),
        (("spec headGroupSpec template spec tolerations", [{"keys": "a"}]), "unknown-field", ["key"]),
        ((f"{BOX} env 0", {"name": "A", "value": 8265}), "wrong-type", ['"8265"']),
        ((f"{POD} nodeSelector cloud.google.com/gke-spot", True), "wrong-type", ['"true"']),
        ((f"{GROUP} rayStartParams", {"num-cpus": 4}), "wrong-type", ['"4"']),
        ((f"{GROUP} labels", {"tier": 1}), "wrong-type", ['"1"']),
        ((f"{GROUP} replicas", "2"), "wrong-type", []),
        (("spec enableInTreeAutoscaling", "true"), "wrong-type", ["true", "false"]),
        (("spec rayVersion", 2.6), "wrong-type", ['"2.6"']),
        ((f"{BOX} resources limits memory", "40 GB"), "wrong-type", []),
        ((f"{BOX} args", "python"), "wrong-type", []),
        ((f"{BOX} ports 0 containerPort", "8265"), "wrong-type", []),
        ((f"{BOX} name", REMOVED), "missing-field", ["name"]),
        ((f"{GROUP} template", REMOVED), "missing-field", ["template"]),
        ((f"{GROUP} groupName", REMOVED), "missing-field", ["groupName"]),
        (("spec headGroupSpec", REMOVED), "missing-field", ["headGroupSpec"]),
        (("spec upgradeStrategy type", "Recreated"), "wrong-value", ["Recreate"]),
        (("spec authOptions mode", "tokens"), "wrong-value", ["token"]),
        (("spec autoscalerOptions version", "V2"), "wrong-value", ["v2"]),
    ],
)
def test_a_spoilt_structure(change: Change, rule: str, facts: list[str]) -> None:
    structural = ("unknown-field", "wrong-type", "missing-field", "wrong-value")
    found = [f for f in check(changed(good.cluster(), change)) if f.rule in structural]
    assert [f.rule for f in found] == [rule], [f"{f.rule} {f.where}: {f.why}" for f in found]
    assert good.place(change[0]) in found[0].where, found[0].where
    good.mentions(found, *facts)


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


@pytest.mark.slow
@pytest.mark.skipif(not CRDS.is_dir(), reason="no CRD schemas: set PODSLICE_KUBERAY_CRDS")
def test_the_schemas_are_those_of_kuberay_and_kubernetes() -> None:
    assert schemas.__file__ is not None
    assert (Path(schemas.__file__).parent / "schemas.json").read_text() == written(made_of(CRDS))
