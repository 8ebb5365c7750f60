"""What is rendered, as the operator writes it back: it adds its finalizer, and with it all that its Go structs spell.

Worker groups are one atomic list to the API server. Where the operator's copy differs from ours in a single field, the
operator owns the list from then on, and the next server-side apply of the same file is refused. What its structs
write is learnt from objects that KubeRay 1.6.2 and 1.7.0 wrote back (tests/kubernetes/recorded).
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kuberay.render import render
from ray_configs.cloud import Bucket, SecretKey
from ray_configs.cluster.deployed import Head
from ray_configs.exposure import LoadBalancer
from ray_configs.llm import LLMConfig
from ray_configs.loading import catalog, load
from ray_configs.service import Application, GcsFaultTolerance, Service
from ray_configs.upgrade import NewCluster

RECORDED = Path(__file__).parents[2] / "kubernetes" / "recorded"
VERSIONS = ("1.6.2", "1.7.0")
NOT_ADDED = {
    ".workerGroupSpecs[].priority",  # the API server's own default, there before the operator sees the object
    ".headGroupSpec.template.spec.volumes[].csi.readOnly",  # kept if said, and all recorded buckets say so
    ".workerGroupSpecs[].template.spec.volumes[].csi.readOnly",
}
"""What the operator does not add, though every recorded object has it."""
KEPT_ZEROS = {"minReplicas", "replicas", "runAsUser"}
"""Pointers in the operator's structs: left out where they are absent, not where they are 0."""

SERVICES: dict[str, Service] = {
    name.rsplit(".", 1)[-1]: load(name) for name in catalog() if isinstance(load(name), Service)
} | {
    "everything": Service(
        name="everything",
        applications=(
            Application(config=LLMConfig(slice="v6e:4x4", max_replicas=2)),
            Application(config=LLMConfig(), name="cpu", route_prefix="/cpu"),
        ),
        bucket=Bucket(read_only=False),
        api_keys=SecretKey(secret="s", key="k"),
        hugging_face_token=SecretKey(secret="s", key="h"),
        exposure=LoadBalancer(internal=False),
        head=Head(cpus=64, memory_gb=2000),
        env={"EMPTY": "", "FULL": "1"},
        upgrade=NewCluster(),
        gcs_fault_tolerance=GcsFaultTolerance(redis_address="r:1", redis_password=SecretKey(secret="s", key="r")),
        disruption_budget=1,
        priority_class="high",
        lock_memory=True,
    )
}


def dicts(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping below `value`, with its path; places in lists are not told apart."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from dicts(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from dicts(inner, f"{path}[]")


def written_back(version: str) -> list[dict[str, Any]]:
    """RayCluster specs inside recorded RayServices."""
    services = [
        item
        for file in sorted((RECORDED / version).glob("*.json"))
        for item in json.loads(file.read_text())["rayservices"]
    ]
    assert len(services) > 5
    return [item["spec"]["rayClusterConfig"] for item in services]


def cluster_spec(config: Service) -> dict[str, Any]:
    (ray_service,) = [item for item in render(config) if item["kind"] == "RayService"]
    return json.loads(json.dumps(ray_service["spec"]["rayClusterConfig"]))


def is_zero(value: Any) -> bool:
    """What `omitempty` may leave out."""
    return value in ("", [], {}) or value is False or (value == 0 and isinstance(value, int))


def canonical(quantity: str) -> str:
    """A quantity as Go's resource.Quantity prints it: no fraction, and the largest suffix that leaves none."""
    suffixes = ["m", "", "k", "M", "G", "T", "P"]
    number, suffix = (quantity[:-1], quantity[-1]) if quantity[-1] in "mkMGTP" else (quantity, "")
    thousandths = round(float(number) * 1000 ** suffixes.index(suffix))
    place = 0
    while thousandths and thousandths % 1000 == 0 and place < len(suffixes) - 1:
        thousandths, place = thousandths // 1000, place + 1
    return f"{thousandths}{suffixes[place] if thousandths else ''}"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SERVICES)
def test_fields_that_the_operator_always_writes_are_there(name: str, version: str) -> None:
    every: dict[str, set[str]] = {}
    for spec in written_back(version):
        for path, item in dicts(spec):
            every[path] = every.get(path, set(item)) & set(item)
    for path, item in dicts(cluster_spec(SERVICES[name])):
        # A variable has a value or a source, and which one says nothing of the others; a group has labels of its own.
        if ".env[]" in path or path == ".workerGroupSpecs[].labels":
            continue
        missing = {key for key in every.get(path, set()) - set(item) if f"{path}.{key}" not in NOT_ADDED}
        assert not missing, f"the operator adds {missing} to rayClusterConfig{path}, and owns the list from then on"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SERVICES)
def test_no_empty_field_that_the_operator_drops(name: str, version: str) -> None:
    kept = defaultdict(list)
    for spec in written_back(version):
        for path, item in dicts(spec):
            for key, value in item.items():
                kept[f"{path}.{key}"].append(value)
    for path, item in dicts(cluster_spec(SERVICES[name])):
        for key, value in item.items():
            if is_zero(value) and key not in KEPT_ZEROS:
                seen = any(is_zero(other) for other in kept[f"{path}.{key}"])
                assert seen, f"rayClusterConfig{path}.{key} is {value!r}: nothing shows that the operator keeps it"


@pytest.mark.parametrize("name", SERVICES)
def test_quantities_are_spelt_as_the_operator_spells_them(name: str) -> None:
    found = []
    for path, item in dicts(cluster_spec(SERVICES[name])):
        if path.rsplit(".", 1)[-1] in ("limits", "requests"):
            found += item.values()
        elif "sizeLimit" in item:
            found.append(item["sizeLimit"])
    assert len(found) > 10 and [canonical(quantity) for quantity in found] == found


@pytest.mark.parametrize(
    ("written", "printed"), [("1000G", "1T"), ("0.5", "500m"), ("1500m", "1500m"), ("2000m", "2"), ("0", "0")]
)
def test_canonical_is_what_go_prints(written: str, printed: str) -> None:
    assert canonical(written) == printed


def test_recorded_quantities_are_canonical() -> None:
    limits = [item for spec in written_back("1.6.2") for path, item in dicts(spec) if path.endswith(".limits")]
    assert limits and all(canonical(quantity) == quantity for item in limits for quantity in item.values())
