"""Memory that a local run takes: of its hosts, and of the models' weights."""

import psutil

from kuberay.local import LocalError
from kuberay.local.hosts import HostsPlan
from ray_configs.applications.model_size import parameters
from ray_configs.llm import LLMConfig
from ray_configs.service import Service

HEAD_GB, HOST_GB = 1.5, 0.6
"""Measured memory, shared pages counted once: of Ray's head with dashboard and Serve; of a host with a tiny model."""


def refuse_too_large(plan: HostsPlan, weights: float, insist: bool) -> None:
    """Raises LocalError if this machine would run out of memory, unless the user insists."""
    needed = memory_gb(plan)
    there = psutil.virtual_memory().available / 1e9
    if needed <= there < needed + weights and not insist:
        raise LocalError(
            f"the models' weights take about {weights:.0f} GB (parameters times bytes, for each replica) besides "
            f"{needed:.1f} GB of the hosts, and {there:.1f} GB are available: --tiny serves tiny random models of the "
            "same architecture; or --insist to start anyway"
        )
    if there < needed and not insist:
        fewer = "smaller slices, --hosts-per-slice N; " if any(host.chips for host in plan.hosts) else ""
        raise LocalError(
            f"{len(plan.hosts)} hosts with the head take about {needed:.1f} GB of memory besides the models' "
            f"weights, and {there:.1f} GB are available: {fewer}or --insist to start anyway"
        )


def weights_gb(service: Service) -> float:
    """Memory of the language models' weights on all hosts together, as far as a name or config.json tells it."""
    total = 0.0
    for app in service.applications:
        config = app.config
        if isinstance(config, LLMConfig) and not config.tiny and (found := parameters(config.model)):
            total += found[0] * (1 if config.quantize_weights == "int8" else 2) * max(1, config.min_replicas)
    return total / 1e9


def memory_gb(plan: HostsPlan) -> float:
    """Memory that the hosts of a plan take, without models."""
    return HEAD_GB + (len(plan.hosts) - 1) * HOST_GB
