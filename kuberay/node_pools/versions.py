"""The GKE version that a config needs. Sources: GKE's tables of TPU availability, flex-start and the Ray operator."""

import re

from ray_configs.capacity import FlexStart, Queued, Spot
from ray_configs.job import Job
from ray_configs.loading import ConfigError
from ray_configs.service import Service

GKES_SHUTDOWN_S = 30
"""How long a Spot machine takes to shut down at most, unless its node pool says more."""
RAY_OPERATOR = "1.30.0-gke.1747000"
"""First version with the Ray operator add-on; it also has v4, v5e and v5p."""
FLEX_START = "1.33.0-gke.1712000"
"""First version with flex-start of TPUs, queued or not."""
SPOT_SHUTDOWN = "1.35.0-gke.1171000"
"""First version whose Spot machines may take more than 30 s to shut down."""
GENERATIONS = {
    "v3": "1.31.0",
    "v6e": "1.31.2-gke.1115000",
    "7x": "1.34.0-gke.2201000",
}


def minimum_version(config: Service | Job) -> tuple[str, str]:
    """The lowest GKE version that suffices, and what requires it."""
    needs = {"the Ray operator add-on": RAY_OPERATOR}
    for group in config.worker_groups:
        if group.slice and group.slice.generation in GENERATIONS:
            needs[f"TPU {group.slice.generation}"] = GENERATIONS[group.slice.generation]
        if isinstance(group.capacity, FlexStart | Queued):
            needs["flex-start of TPUs"] = FLEX_START
        if isinstance(group.capacity, Spot) and group.capacity.shutdown_s > GKES_SHUTDOWN_S:
            needs[f"Spot(shutdown_s={group.capacity.shutdown_s})"] = SPOT_SHUTDOWN
    reason = max(needs, key=lambda name: _numbers(needs[name]))
    return needs[reason], reason


def refuse_old_version(config: Service | Job) -> None:
    """Raises ConfigError if cluster_version is too old. `1.34` means the newest 1.34; `latest` passes."""
    asked = config.cloud.cluster_version
    if asked is None or not (numbers := _numbers(asked)):
        return
    least, reason = minimum_version(config)
    if numbers < _numbers(least)[: len(numbers)]:
        raise ConfigError(f"cloud.cluster_version {asked} is too old: {reason} needs GKE {least} or later")


def _numbers(version: str) -> tuple[int, ...]:
    """`1.34.0-gke.2201000` -> (1, 34, 0, 2201000); `1.34` -> (1, 34)."""
    found = re.match(r"(\d+)(?:\.(\d+)(?:\.(\d+)(?:-gke\.(\d+))?)?)?", version)
    return tuple(int(part) for part in found.groups() if part is not None) if found else ()
