"""Which numbers of a running Ray cluster `apply` writes, where the autoscaler writes some of them too."""

import copy
from typing import Any

import pytest

from kuberay.cluster.rollout import other_numbers
from kuberay.render import render
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service


def of(least: int, most: int) -> dict[str, Any]:
    """A service with slices of two hosts, and another application that always scales."""
    slices = LLMConfig(slice="v5e:2x4:4t", min_replicas=least, max_replicas=most, routers=0)
    scaling = LLMConfig(slice="v6e:2x2", min_replicas=0, max_replicas=2, routers=0)
    apps = Application(config=slices), Application(config=scaling, name="other", route_prefix="/other")
    (manifest,) = (item for item in render(Service(name="s", applications=apps)) if item["kind"] == "RayService")
    return manifest


def running(manifest: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "s-abcde"}, "spec": copy.deepcopy(manifest["spec"]["rayClusterConfig"])}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            (1, 1),
            (2, 2),
            ["replicas 1 -> 2, maxReplicas 2 -> 4", "replicas 1 -> 2, minReplicas 1 -> 2, maxReplicas 1 -> 2"],
        ),
        ((1, 2), (1, 3), ["maxReplicas 4 -> 6", "maxReplicas 2 -> 3"]),
        ((1, 2), (1, 2), []),
    ],
    ids=["a fixed number", "a number that Serve decides", "no change"],
)
def test_replicas_are_written_where_nobody_else_does(before: tuple, after: tuple, said: list[str]) -> None:
    words = other_numbers(of(*after), running(of(*before)))
    told = dict(part.removeprefix("group ").split(": ", 1) for part in "".join(words).split("; ") if part)
    assert list(told.values()) == said
    assert set(told) <= {"tpu-v5e-2x4-4t", "cpu-v5e-2x4-4t"}


def test_slices_that_the_autoscaler_added_stay() -> None:
    live = running(of(0, 2))
    live["spec"]["workerGroupSpecs"][0]["replicas"] = 2
    assert other_numbers(of(0, 2), live) == []
