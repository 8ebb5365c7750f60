"""Every slice that GKE sells, bought in every way: what is rendered is complete, adds up, and passes its own check.

A combination that a config refuses is refused with the reason; there is no third outcome.
"""

from typing import Any

import pytest
from pydantic import ValidationError

from kuberay.check import check
from kuberay.render import render
from ray_configs.capacity import Capacity, FlexStart, OnDemand, Queued, Reservation, Spot
from ray_configs.cluster.workers import ROUTERS
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from ray_configs.tpu import GENERATIONS, TpuSlice, every_slice

CAPACITIES: tuple[Capacity, ...] = (OnDemand(), Spot(), Reservation(name="ours"), FlexStart(), Queued())
QUIET = ("error", "warning")
QUICK = ("v3", "v5e")
"""Generations that `make test` tries; `make test-all` has the rest."""


def a_service(slice: TpuSlice, capacity: Capacity) -> Service:
    application = Application(config=LLMConfig(model="/models/any", slice=slice), capacity=capacity)
    return Service(name="any", applications=(application,))


def a_job(slice: TpuSlice, capacity: Capacity) -> Job:
    return Job(name="any", command=("true",), slice=slice, capacity=capacity)


def chips_of(objects: list[dict[str, Any]]) -> tuple[int, int]:
    """Hosts, and chips on each, as the objects have them."""
    for item in objects:
        if item["kind"] == "RayService":
            group, *others = item["spec"]["rayClusterConfig"]["workerGroupSpecs"]
            processes = [each for each in others if each["groupName"] != ROUTERS]
            assert bool(processes) == (group["numOfHosts"] > 1)
            return group["numOfHosts"], _chips(group["template"])
        if item["kind"] == "Job":
            return item["spec"].get("completions", 1), _chips(item["spec"]["template"])
    raise AssertionError("neither a RayService nor a Job")


def _chips(template: dict[str, Any]) -> int:
    (container,) = template["spec"]["containers"]
    return int(container["resources"]["limits"]["google.com/tpu"])


@pytest.mark.parametrize("capacity", CAPACITIES, ids=lambda capacity: capacity.kind)
@pytest.mark.parametrize(
    "generation", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in GENERATIONS]
)
@pytest.mark.parametrize("build", [a_service, a_job])
def test_render_and_check_are_clean(build: Any, generation: str, capacity: Capacity) -> None:
    rendered = 0
    for slice in every_slice():
        if slice.generation != generation:
            continue
        unsold = not slice.machine.dynamic_workload_scheduler and capacity.kind in ("flex-start", "queued")
        if unsold or (build is a_service and slice.ray_refusal):
            with pytest.raises(ValidationError, match=r"is not sold for|Ray does not know|autoscaler does not know"):
                build(slice, capacity)
            continue
        objects = render(build(slice, capacity))
        hosts, chips = chips_of(objects)
        assert hosts * chips == slice.chips and hosts == slice.hosts
        assert not [finding for finding in check(objects) if finding.severity in QUIET], slice
        rendered += 1
    everything_is_refused = (generation == "v3" and build is a_service) or (
        generation == "v4" and capacity.kind in ("flex-start", "queued")
    )
    assert (rendered == 0) == everything_is_refused
