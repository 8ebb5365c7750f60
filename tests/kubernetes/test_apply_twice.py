"""Applying what is there already changes nothing, whichever tool applied it before."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kubernetes.catalog_manifests import MANIFESTS, Object, expected_pods, items, objects_of, placed, settled_pods
from tests.kubernetes.clusters import Cluster

Apply = Callable[[Cluster, str], object]
TOOLS: dict[str, tuple[Apply, Apply]] = {
    "kubectl apply": (
        lambda cluster, file: cluster.kubectl("apply", "-f", file),
        lambda cluster, file: cluster.kubectl("diff", "-f", file),
    ),
    "kubectl apply --server-side": (
        lambda cluster, file: cluster.kubectl("apply", "--server-side", "-f", file),
        lambda cluster, file: cluster.kubectl("diff", "--server-side", "-f", file),
    ),
    "python -m kuberay apply": (
        lambda cluster, file: cluster.podslice("apply", file),
        lambda cluster, file: cluster.podslice("diff", file),
    ),
}
CLIENT, SERVER, OURS = TOOLS
# Each tool after each, once around; every third is another one.
CIRCLE = (CLIENT, CLIENT, SERVER, SERVER, OURS, CLIENT, OURS, OURS, SERVER)


def specs(cluster: Cluster, namespace: str, objects: list[Object]) -> dict[str, tuple[int | None, Object]]:
    """Generation and content of each object. A kind without generations has None."""
    found = {}
    for kind in {item["kind"] for item in objects}:
        for item in items(cluster, namespace, kind):
            content = {key: value for key, value in item.items() if key not in ("metadata", "status")}
            found[f"{kind}/{item['metadata']['name']}"] = (item["metadata"].get("generation"), content)
    return found


STARTS = [(path, 3 * (number % 3)) for number, path in enumerate(MANIFESTS)]  # each tool is the first in turn


@pytest.mark.parametrize(("manifest", "first"), STARTS, ids=[f"{path.stem} by {CIRCLE[at]}" for path, at in STARTS])
def test_applying_again_changes_nothing(
    control_plane: Cluster, namespace: str, manifest: Path, first: int, tmp_path: Path
) -> None:
    file = str(placed(manifest, namespace, tmp_path))
    objects = objects_of(manifest)
    order = [CIRCLE[(first + step) % len(CIRCLE)] for step in range(len(CIRCLE) + 1)]
    TOOLS[order[0]][0](control_plane, file)
    settled_pods(control_plane, namespace, expected_pods(objects))  # the operator has written the object back by then
    before = specs(control_plane, namespace, objects)
    assert len(before) >= len(objects)
    for last, tool in pairwise(order):
        apply, difference = TOOLS[tool]
        apply(control_plane, file)
        assert specs(control_plane, namespace, objects) == before, f"{tool} after {last}"
        if (
            tool == last
        ):  # else kubectl's server-side diff may show the note that its client-side apply keeps for itself
            difference(control_plane, file)
            control_plane.podslice("diff", file)
