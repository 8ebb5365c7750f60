"""Whatever a manifest holds, a check answers with findings: never an exception, and soon."""

import copy
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kuberay.check import RULES, Finding, check
from tests.kuberay.check import good_manifests as good

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 10**12, 1.5, "", "x", "-", "$X", "{{ x }}", "0x0", "a" * 5000, [], {}, [None], [[]],
    ["a", 1], {"a": None}, {"name": []}, [{}], [{"name": 1}], {1: 2}, {None: {}}, [{"groupName": ["a"]}], "2x2x2x2x2",
    "applications: 7", "applications: [7, [], {deployments: 3}, {deployments: [4, {ray_actor_options: 5}]}]",
)  # fmt: skip
"""Values that do not belong, to be put everywhere."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def replaced(objects: list[Any], path: tuple[Any, ...], value: Any) -> list[Any]:
    if not path:
        return [value]
    objects = copy.deepcopy(objects)
    target: Any = objects
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return objects


@pytest.mark.parametrize("amount", [10**400, "9" * 400, -4, "1ki"], ids=["large", "text", "negative", "unit"])
def test_amounts_that_no_machine_has(amount: Any) -> None:
    resources = (0, "spec", "workerGroupSpecs", 0, "template", "spec", "containers", 0, "resources")
    for resource in ("cpu", "memory", "google.com/tpu"):
        limited = replaced(good.cluster(), (*resources, "limits", resource), amount)
        found = check(replaced(limited, (*resources, "requests", resource), amount))
    assert "tpu-chips" in {finding.rule for finding in found}


@pytest.mark.slow
@pytest.mark.parametrize("values", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("manifest", good.ALL)
def test_odd_values_everywhere(manifest: Any, values: int) -> None:
    objects, chance = manifest(), random.Random(manifest.__name__)
    for path in places(objects):
        for value in chance.sample(ODD, values):
            for finding in check(replaced(objects, path, copy.deepcopy(value))):
                assert isinstance(finding, Finding)
                assert finding.why and finding.instead and finding.where


def test_odd_objects() -> None:
    for value in ODD:
        check([value])
        check([{"apiVersion": value, "kind": value, "metadata": value, "spec": value}])
        for kind in ("RayService", "RayCluster", "RayJob", "RayCronJob"):
            check([{"apiVersion": "ray.io/v1", "kind": kind, "metadata": value, "spec": value}])


def test_a_check_changes_nothing() -> None:
    for manifest in good.ALL:
        objects = manifest()
        check(objects)
        assert objects == manifest()


def test_many_objects_take_no_more_work_each() -> None:
    """Counted in calls, not seconds: some 17,000 for this one. A rule that walks through all objects for each of them
    would show."""
    count = 16
    objects = [copy.deepcopy(good.wide_service()[0]) for _ in range(count)]
    for index, item in enumerate(objects):
        item["metadata"]["name"] = f"llama-{index}"
    one = calls_of_check(objects[:1])
    assert one < 100_000
    assert calls_of_check(objects) < 1.2 * count * one


def calls_of_check(objects: list[dict[str, Any]]) -> int:
    check(objects)  # what is read once is read
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        check(objects)
    finally:
        sys.setprofile(None)
    return calls


def test_every_rule_says_where_it_comes_from_and_why() -> None:
    for name, rule in RULES.items():
        assert all(each.source and each.about for each in rule.checks), name


def test_checking_loads_no_heavy_library() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tests.kuberay.check.good_manifests import ALL, check\n"
        "for manifest in ALL: check(manifest())\n"
        "print([name for name in ('jax', 'ray', 'torch', 'numpy', 'kubernetes', 'rich') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parents[3])]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_findings_do_not_repeat() -> None:
    objects = good.cluster()
    objects[0]["spec"]["workerGroupSpecs"][0]["numOfHosts"] = 3
    found = check(objects * 1)
    assert len(found) == len(set(found))
