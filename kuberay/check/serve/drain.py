"""Requests that end before their Pod does: how long Serve, Ray and Kubernetes each wait."""

from collections.abc import Iterator

from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, rule, warning
from kuberay.check.serve.arguments import our_applications
from kuberay.check.serve_documents import ServeConfig, applications_and_deployments

_RAY_WAITS = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
_DEFAULT_S = 30
"""Of Kubernetes and of Ray alike."""
_KNOWS = (2, 60)
"""The Ray whose `ray start --block` drains its node when it is told to stop."""


@rule(ServeConfig, "drain", "Kubernetes: terminationGracePeriodSeconds; Ray 2.60: ray start --block on SIGTERM")
def drains(config: ServeConfig) -> Iterator[Problem]:
    """A Pod that is told to stop lives until its replicas' requests may end."""
    wanted = max(_drains(config), default=None)
    if wanted is None:
        return
    cluster = config.cluster
    for group in cluster.groups:
        if not group.pod.containers:
            continue
        grace, ray = group.pod.spec["terminationGracePeriodSeconds"], group.pod.env(0).get(_RAY_WAITS)
        has = grace.number if grace.present else _DEFAULT_S
        if has is not None and has <= wanted:
            yield warning(
                grace,
                f"replicas may take {wanted:g} s to finish their requests, and Kubernetes kills the Pod after {has}: a "
                "drain of its node cuts streams",
                f"write terminationGracePeriodSeconds: {int(wanted) + _DEFAULT_S}",
            )
        written = str(ray["value"].value) if ray is not None else str(_DEFAULT_S)
        known = cluster.ray_version is not None and cluster.ray_version >= _KNOWS
        if known and written.isdigit() and int(written) < wanted:
            yield warning(
                ray["value"] if ray is not None else group.pod.containers[0]["env"],
                f"replicas may take {wanted:g} s to finish their requests, and Ray stops its node {written} s after it "
                "is told to: a drain of the node cuts streams",
                f'add {_RAY_WAITS} with the value "{int(wanted) + 5}" to env',
            )


def _drains(config: ServeConfig) -> Iterator[float]:
    """Seconds that replicas are given, where somebody says so."""
    for _, deployment in applications_and_deployments(config):
        yield from _seconds(deployment["graceful_shutdown_timeout_s"])
    for application, model in our_applications(config):
        field = model.model_fields.get("drain_timeout_s")
        told = application["args"]["drain_timeout_s"]
        if field is not None and not told.placeholder:
            yield from _seconds(told) if told.present else [float(field.default)]


def _seconds(node: Node) -> Iterator[float]:
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        yield float(node.value)
