"""The Ray cluster that a run uses."""

import contextlib
import logging
import math
import os
from collections.abc import Iterator
from typing import Any

import ray

from apps.jobs.generation.parts import OutputRefused
from apps.serving.private_ray import start_ray
from ray_configs.llm import LLMConfig


@contextlib.contextmanager
def connected(config: LLMConfig, replicas: int, address: str | None) -> Iterator[None]:
    """Connect to a Ray cluster: the one at `address`, the one already connected to, or a new one on this machine.

    Raises:
        OutputRefused: there is no such cluster, or this machine lacks the TPU that the config needs.
    """
    if ray.is_initialized():
        yield
        return
    kind: dict[str, Any] = {"address": address}
    if address is None:
        # CPUs are only Ray's accounting, not a limit: enough for all replicas, and some for Ray Data itself.
        cpus = max(os.cpu_count() or 1, math.ceil(replicas * config.num_cpus) + 2)
        kind = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    try:
        start_ray(**kind, logging_level=logging.WARNING)
    except (OSError, RuntimeError, ValueError) as error:
        raise OutputRefused(f"there is no Ray cluster at {address or 'this machine'}: {error}") from error
    try:
        wanted = 0 if config.slice is None else config.slice.chips_per_host
        if address is None and ray.cluster_resources().get("TPU", 0) < wanted:
            raise OutputRefused(
                f"this machine has no {config.slice}; use a cluster that has one (--address), or --set slice=None"
            )
        yield
    finally:
        ray.shutdown()
