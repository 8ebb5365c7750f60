"""Deployment options that follow from a config: replicas, their resources, queues, health checks and draining.

And for the process of each: which devices JAX is to use.
"""

import os
from typing import Any

from ray_configs.applications.replicas import AppConfig
from ray_configs.cluster.workers import GROUP_LABEL, GROUPS_LABELLED, process_group_name
from ray_configs.labels import TPU_POD_TYPE, TPU_WORKER_ID
from ray_configs.llm import LLMConfig
from ray_configs.stable_diffusion import StableDiffusionConfig

RETRY_AFTER_S = 2.0


def options(config: LLMConfig | StableDiffusionConfig) -> dict[str, Any]:
    """Deployment options that follow from a config."""
    actor: dict[str, Any] = {"num_cpus": config.num_cpus}
    place: dict[str, Any] = {}
    if config.spans_hosts:
        # The replica reserves its chips itself; its own process has a CPU Pod, which no slice's death takes along.
        actor |= on_cpu_pod(config)
        if "label_selector" not in actor:
            # A cluster without such Pods. The process is best on the slice that it will own: on a worker 0, one for
            # each; anywhere, while there is no such slice yet.
            assert config.slice is not None
            pod_type = config.slice.ray_pod_type
            actor["label_selector"] = {TPU_WORKER_ID: "0", TPU_POD_TYPE: pod_type}
            actor["fallback_strategy"] = [{"label_selector": {}}]
        place["max_replicas_per_node"] = 1
    elif config.slice is not None:
        actor["resources"] = {"TPU": config.slice.chips_per_host}
        # Four chips of a v5e 2x2 and four of a larger slice's host are not the same place.
        actor["label_selector"] = {TPU_POD_TYPE: config.slice.ray_pod_type}
    else:
        actor |= on_cpu_pod(config)
    if config.max_replicas > config.min_replicas:
        scale: dict[str, Any] = {
            "autoscaling_config": {
                "min_replicas": config.min_replicas,
                "max_replicas": config.max_replicas,
                "target_ongoing_requests": config.target_ongoing_requests,
            }
        }
    else:
        scale = {"num_replicas": config.min_replicas}
    return (
        scale
        | place
        | {
            "ray_actor_options": actor,
            "max_ongoing_requests": config.max_ongoing_requests,
            "max_queued_requests": config.max_queued_requests,
            "backpressure_config": {"status_code": 503, "retry_after_s": RETRY_AFTER_S},
            # Three failures in a row, and the replica is replaced: with several hosts there is more that can fail.
            "health_check_period_s": 1 if config.spans_hosts else 3,
            "health_check_timeout_s": 30,
            "graceful_shutdown_wait_loop_s": 0.5,
            "graceful_shutdown_timeout_s": config.drain_timeout_s,
            # One line of the server's own every few seconds says more than one for each request, and costs less.
            "logging_config": {"enable_access_log": False},
        }
    )


def on_cpu_pod(config: AppConfig) -> dict[str, Any]:
    """Actor options for a process without chips: on the CPU Pods beside the config's slices, where there are such."""
    if os.environ.get(GROUPS_LABELLED) != "1" or (config.slice is not None and config.slice.single_host):
        return {}
    return {"label_selector": {GROUP_LABEL: process_group_name(config.slice)}}


def choose_platform(config: AppConfig) -> None:
    """Tells JAX what this replica's process computes on. To be called before anything imports jax."""
    if config.spans_hosts:
        os.environ["JAX_PLATFORMS"] = "cpu"  # the chips, if any here, are those of a host of some slice
    else:
        # With TPUs, the CPU backend stays: some of jax's own code asks for it.
        os.environ.setdefault("JAX_PLATFORMS", "cpu" if config.slice is None else "tpu,cpu")
