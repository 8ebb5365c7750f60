"""What keeps a run alive when replicas die, and what ends it when they do nothing else."""

import os
import signal
import time

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table

from apps.jobs.generation.deaths import DEATHS_EACH, Deaths
from apps.jobs.generation.pipeline import MOST_CHUNK_LINES, chunk_lines
from apps.llm.slice_reservation import give_back_all


@pytest.mark.slow
def test_deaths_without_an_answer_end_the_run(ray_cluster: str) -> None:
    deaths = Deaths.remote(2)
    for actor in ("a", "b"):
        ray.get(deaths.started.remote(actor))
    for _ in range(3):
        for _ in range(2 * DEATHS_EACH):
            ray.get(deaths.started.remote("a"))
        ray.get(deaths.answered.remote())
    ray.get(deaths.reason.remote("the engine failed: because"))
    for _ in range(2 * DEATHS_EACH):
        ray.get(deaths.started.remote("b"))
    with pytest.raises(ray.exceptions.RayTaskError, match=r"replicas died 7 times .* the engine failed: because"):
        ray.get(deaths.started.remote("b"))


@ray.remote(num_cpus=0, max_restarts=1, max_task_retries=-1)
class Holder:
    def hold(self) -> int:
        self.group = placement_group([{"CPU": 1}], name=f"podslice:{ray.get_runtime_context().get_actor_id()}:1")
        assert self.group.wait(240)
        return os.getpid()

    def give_back(self) -> int:
        give_back_all(ray.get_runtime_context().get_actor_id())
        return os.getpid()


def held() -> int:
    return sum(group["state"] == "CREATED" for group in placement_group_table().values())


@pytest.mark.slow
def test_a_restarted_actor_gives_back_what_it_held(ray_cluster: str) -> None:
    before, holder = held(), Holder.remote()
    first = ray.get(holder.hold.remote())
    os.kill(first, signal.SIGKILL)
    assert held() == before + 1
    assert ray.get(holder.give_back.remote()) != first
    deadline = time.monotonic() + 240
    while held() != before:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_chunks_are_small_where_lines_are_few() -> None:
    assert chunk_lines(10, 1, 32) == 1
    assert chunk_lines(10**7, 8, 32) == MOST_CHUNK_LINES
    assert 2 * 2 * 32 * (chunk_lines(1000, 2, 32) - 1) < 1000
