"""Requests that end before their Pod does: how long Serve, Ray and Kubernetes each wait."""

from collections.abc import Iterator

from kuberay.check.rules import Problem, rule, warning
from kuberay.check.serve.arguments import model_of
from kuberay.check.serve_documents import ServeConfig

_RAY_WAITS = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
_DEFAULT_S = 30
"""Of Kubernetes and of Ray alike."""
_KNOWS = (2, 60)
"""The Ray whose `ray start --block` drains its node when it is told to stop."""


@rule(ServeConfig, "drain", "Kubernetes: terminationGracePeriodSeconds; Ray 2.60: ray start --block on SIGTERM")
def drains(config: ServeConfig) -> Iterator[Problem]:
    """A Pod that is told to stop lives until its replicas' requests may end."""
    wanted = max(_drains(config), default=0.0)
    may = f"replicas may take {wanted:g} s to finish their requests, and"
    for group in config.cluster.groups if wanted else ():
        if group.ray is None:
            continue
        grace, ray = group.pod.spec["terminationGracePeriodSeconds"], group.env.get(_RAY_WAITS)
        has = grace.number if grace.present else _DEFAULT_S
        if has is not None and has <= wanted:
            why = f"{may} Kubernetes kills the Pod after {has}: a drain of its node cuts streams"
            yield warning(grace, why, f"write terminationGracePeriodSeconds: {int(wanted) + _DEFAULT_S}")
        written = str(ray.value) if ray else str(_DEFAULT_S)
        if (group.cluster.ray_version or (0,)) >= _KNOWS and written.isdigit() and int(written) < wanted:
            why = f"{may} Ray stops its node {written} s after it is told to: a drain of the node cuts streams"
            yield warning(ray or group.ray["env"], why, f'add {_RAY_WAITS} with the value "{int(wanted) + 5}" to env')


def _drains(config: ServeConfig) -> Iterator[float]:
    """Seconds that replicas are given, where somebody says so."""
    for deployment in config.deployments:
        yield deployment["graceful_shutdown_timeout_s"].amount
    for application in config.applications:
        model, told = model_of(application), application["args"]["drain_timeout_s"]
        field = model.model_fields.get("drain_timeout_s") if model else None
        if field is not None and not told.placeholder:
            yield told.amount if told.present else float(field.default)
