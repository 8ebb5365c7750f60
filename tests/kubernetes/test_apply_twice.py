"""Applying what is there already changes nothing, whichever tool applied it before."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kuberay.render import render, to_yaml
from ray_configs.loading import load
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
EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm_engine.py"
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
    order = [CIRCLE[(first + step) % len(CIRCLE)] for step in range(len(CIRCLE) + 1)]
    applied_in_turns(control_plane, namespace, manifest, order, tmp_path)


def test_a_service_by_vllm(control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    """The operator takes it as any other: two slices of hosts, of another image than the head and the routers."""
    manifest = tmp_path / "by_vllm.yaml"
    manifest.write_text(to_yaml(render(load(str(EXAMPLE)))))
    applied_in_turns(control_plane, namespace, manifest, [CLIENT, CLIENT, OURS, OURS], tmp_path)
    pods = items(control_plane, namespace, "pods")
    images = Counter(container["image"].rpartition("/")[2] for pod in pods for container in pod["spec"]["containers"])
    assert images == {"llm-vllm:0.1.0": 8, "llm:0.1.0": len(pods) - 8}


def applied_in_turns(control_plane: Cluster, namespace: str, manifest: Path, order: list[str], folder: Path) -> None:
    """Apply a manifest with one tool after the other, the first time to nothing."""
    file = str(placed(manifest, namespace, folder))
    objects = objects_of(manifest)
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
