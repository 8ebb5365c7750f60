"""What the real API server, operator and webhook make of the manifests, before any Pod runs."""

import json
from pathlib import Path

import pytest

from tests.kubernetes.catalog_manifests import every_manifest, expected_pods, items, objects_of, placed, settled_pods
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.recording import RECORDED, record


@every_manifest
def test_the_operator_makes_of_a_manifest_what_is_recorded(
    control_plane: Cluster, namespace: str, manifest: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The record was made by GKE's own webhook. With --record it is written again."""
    control_plane.kubectl("apply", "--server-side", "-f", str(placed(manifest, namespace, tmp_path)))
    count = expected_pods(objects_of(manifest))
    assert len(settled_pods(control_plane, namespace, count)) == count
    warnings = items(control_plane, namespace, "events", "--field-selector=type=Warning")
    refusals = [item["message"] for item in warnings if item["reason"] != "FailedScheduling"]
    # The operator's cache may be a moment behind what it has just made.
    assert [said for said in refusals if not said.endswith("already exists")] == []
    if control_plane.plane is None:
        return  # what other versions and other webhooks make of it is not recorded
    made = record(control_plane, namespace, manifest)
    file = RECORDED / control_plane.plane.operator.version / f"{manifest.stem}.json"
    if request.config.getoption("--record", default=False):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(made, indent=1) + "\n")
    assert made == json.loads(file.read_text())
