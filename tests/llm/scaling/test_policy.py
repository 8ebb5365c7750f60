"""Scaling by the load that engines behind routers have, through Ray Serve's own wrapper of policies.

Oracle: Serve's own policy, which sees requests that come through it, given the same numbers.
"""

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.autoscaling_policy import _apply_autoscaling_config, replica_queue_length_autoscaling_policy
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from apps.llm.served.scaling import OPEN, ByLoad

TARGET = 4


def context(running: int, told: list[float], through_serve: float = 0, waiting: float = 0) -> AutoscalingContext:
    """What Serve's controller knows: `told` by the replicas, or seen by itself."""
    deployment = DeploymentID(name="LLMEngine", app_name="llm")
    replicas = [ReplicaID(str(number), deployment) for number in range(running)]
    config = AutoscalingConfig(
        min_replicas=0, max_replicas=9, target_ongoing_requests=TARGET, upscale_delay_s=0, downscale_delay_s=0
    )
    return AutoscalingContext(
        deployment_id=deployment,
        deployment_name=deployment.name,
        app_name=deployment.app_name,
        current_num_replicas=running,
        target_num_replicas=running,
        running_replicas=replicas,
        total_num_requests=through_serve + waiting,
        total_queued_requests=waiting,
        aggregated_metrics={OPEN: dict(zip(replicas, told))} if told else {},
        raw_metrics={},
        capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=9,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=config,
    )


OURS = _apply_autoscaling_config(ByLoad(TARGET))


@pytest.mark.parametrize("told", [[0.0], [1.0], [4.0], [5.0], [40.0], [3.0, 4.0, 1.0], [0.0, 0.0], [9.0, 0.0]])
def test_as_serve_would_for_the_same_requests(told: list[float]) -> None:
    serves = _apply_autoscaling_config(replica_queue_length_autoscaling_policy)
    assert OURS(context(len(told), told))[0] == serves(context(len(told), [], sum(told)))[0]


def test_from_none_to_one_for_a_call_that_waits() -> None:
    assert OURS(context(0, []))[0] == 0
    assert OURS(context(0, [], waiting=1))[0] == 1


def test_one_that_starts_is_not_stopped_while_requests_wait_for_it() -> None:
    assert OURS(context(1, [0.0], waiting=1))[0] == 1


def test_nothing_changes_before_the_first_word() -> None:
    assert OURS(context(3, []))[0] == 3
