"""What the operators wrote back of the catalog's services is no difference: whoever wrote it owns nothing of ours."""

import json
from pathlib import Path

import pytest

from kuberay.cluster.rollout.sameness import same
from kuberay.render import render
from ray_configs.loading import catalog, load

RECORDED = Path(__file__).parents[2] / "kubernetes" / "recorded"
NAMES = [
    path.stem for path in sorted((RECORDED / "1.7.0").glob("*.json")) if json.loads(path.read_text())["rayservices"]
]


@pytest.mark.parametrize("version", ["1.6.2", "1.7.0"])
@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_service_is_the_rendered_one(name: str, version: str) -> None:
    (module,) = [module for module in catalog() if module.endswith(f".{name}")]
    (ours,) = [item["spec"] for item in render(load(module)) if item["kind"] == "RayService"]
    (theirs,) = json.loads((RECORDED / version / f"{name}.json").read_text())["rayservices"]
    assert same(json.loads(json.dumps(ours)), theirs["spec"])
