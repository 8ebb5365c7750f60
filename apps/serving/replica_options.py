"""Deployment options that follow from a config: replicas, their resources, queues, health checks and draining.

Also chooses the devices that JAX uses in a replica's process.
"""

import os
from typing import Any

from ray_configs.applications.replicas import AppConfig
from ray_configs.cluster.labels import TPU_POD_TYPE, TPU_WORKER_ID
from ray_configs.cluster.workers import GROUP_LABEL, GROUPS_LABELLED, process_group_name
from ray_configs.llm import LLMConfig
from ray_configs.stable_diffusion import StableDiffusionConfig

RETRY_AFTER_S = 2.0


def options(config: LLMConfig | StableDiffusionConfig) -> dict[str, Any]:
    """Deployment options that follow from a config."""
    actor: dict[str, Any] = {"num_cpus": config.num_cpus}
    place: dict[str, Any] = {}
    if config.spans_hosts:
        # The replica reserves its chips itself. Its own process runs on a CPU Pod, which survives the loss of a slice.
        actor |= on_cpu_pod(config)
        if "label_selector" not in actor:
            # A cluster without such Pods: prefer a worker 0 of the slices, one process on each, as that may be the
            # slice it will own. While there is no such slice yet, any node will do.
            assert config.slice is not None
            pod_type = config.slice.ray_pod_type
            actor["label_selector"] = {TPU_WORKER_ID: "0", TPU_POD_TYPE: pod_type}
            actor["fallback_strategy"] = [{"label_selector": {}}]
        place["max_replicas_per_node"] = 1
    elif config.slice is not None:
        actor["resources"] = {"TPU": config.slice.chips_per_host}
        # Four chips of a v5e 2x2 are not interchangeable with four of a larger slice's host.
        actor["label_selector"] = {TPU_POD_TYPE: config.slice.ray_pod_type}
    else:
        actor |= on_cpu_pod(config)
    if config.max_replicas > config.min_replicas:
        scale: dict[str, Any] = {
            "autoscaling_config": {
                "min_replicas": config.min_replicas,
                "max_replicas": config.max_replicas,
                "target_ongoing_requests": config.target_ongoing_requests,
                "downscale_to_zero_delay_s": config.zero_after_s,
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
            # Serve replaces a replica after three failures in a row. With several hosts more can fail: check often.
            "health_check_period_s": 1 if config.spans_hosts else 3,
            # Streams of a process that is stopped last until then. A check takes no time, and nothing holds its loop.
            "health_check_timeout_s": 10,
            "graceful_shutdown_wait_loop_s": 0.5,
            "graceful_shutdown_timeout_s": config.drain_timeout_s,
        }
    )


def on_cpu_pod(config: AppConfig) -> dict[str, Any]:
    """Actor options for a process without chips: place it on the CPU Pods beside the config's slices, if any."""
    if config.slice is not None and config.slice.single_host:
        return {}
    return in_group(process_group_name(config.slice))


def in_group(name: str) -> dict[str, Any]:
    """Actor options for a process that runs on a group's CPU Pods, where Pods are labelled so."""
    return {"label_selector": {GROUP_LABEL: name}} if os.environ.get(GROUPS_LABELLED) == "1" else {}


def choose_platform(config: AppConfig) -> None:
    """Tell JAX which platform this replica's process uses. Call it before anything imports jax."""
    if config.spans_hosts:
        os.environ["JAX_PLATFORMS"] = "cpu"  # chips on this node, if any, belong to a host of some slice
    else:
        # With TPUs, keep the CPU backend: some of jax's own code needs it.
        os.environ.setdefault("JAX_PLATFORMS", "cpu" if config.slice is None else "tpu,cpu")
