"""What the real API server, operator and webhook make of the manifests, before any Pod runs."""

from pathlib import Path

from catalog_manifests import every_manifest, expected_pods, items, objects_of, placed, settled_pods
from clusters import Cluster


@every_manifest
def test_the_operator_makes_every_pod_of_a_manifest(
    control_plane: Cluster, namespace: str, manifest: Path, tmp_path: Path
) -> None:
    control_plane.kubectl("apply", "--server-side", "-f", str(placed(manifest, namespace, tmp_path)))
    count = expected_pods(objects_of(manifest))
    assert len(settled_pods(control_plane, namespace, count)) == count
    warnings = items(control_plane, namespace, "events", "--field-selector=type=Warning")
    assert [item["message"] for item in warnings if item["reason"] != "FailedScheduling"] == []
