"""RayServices: upgrades, readiness of workers, endpoints of the Service, and draining."""

from collections.abc import Iterator

from kuberay.check.manifests import RayCluster
from kuberay.check.rules import Problem, error, rule, warning
from kuberay.check.serve.arguments import model_of
from kuberay.check.subjects import ServeConfig

_RAY_WAITS = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
_DEFAULT_S = 30
"""Default grace period of Kubernetes, and of Ray."""
_DRAINS = (2, 60)
"""First version of Ray in which `ray start --block` drains its node on SIGTERM."""


@rule(RayCluster, "upgrade-capacity", "KubeRay 1.7: a second RayCluster runs beside the first")
def upgrade_capacity(cluster: RayCluster) -> Iterator[Problem]:
    """An upgrade must not need every TPU twice, as the default does: a new cluster for each change of the spec.

    See kuberay#1476, #2274 and #4239.
    """
    kind = cluster.upgrade["type"]
    if cluster.service and any(group.tpu for group in cluster.groups) and kind.value in (None, "NewCluster"):
        why = (
            f"{'is' if kind.present else 'is missing, which means'} NewCluster: a change of rayClusterConfig starts a "
            "second cluster, which needs all TPUs again; if they are scarce, it stays Pending forever "
            "(kuberay#1476, #2274, #4239)"
        )
        instead = "write upgradeStrategy.type: None and replace it yourself, or NewClusterWithIncrementalUpgrade"
        yield warning(kind, why, instead)


@rule(ServeConfig, "serve-readiness", "KubeRay 1.7: initLivenessAndReadinessProbe, BuildServeService (kuberay#1808)")
def readiness(config: ServeConfig) -> Iterator[Problem]:
    """Hosts without a Serve proxy stay NotReady, which keeps them out of NAME-serve-svc; KubeRay's probe does that."""
    head_only, listens = config.head_only, config.http_port
    reason = "HeadOnly starts no Serve proxy on workers" if head_only else "only one host of each slice has a proxy"
    for group in config.cluster.groups:
        if group.ray is None or not (group.multi_host or head_only):
            continue
        probe = group.ray["readinessProbe"]
        port = probe["httpGet"]["port"]
        asked = group.ray.ports.get(port.text or "", port).number
        if probe.present and asked != listens and f":{listens}/" not in str(probe["exec"].value):
            why = (
                "NAME-serve-svc sends requests to every worker that is Ready, and this probe does not check Serve's "
                f"proxy on port {listens}: {reason}, and requests to the other hosts are refused (kuberay#1808)"
            )
            instead = (
                "leave readinessProbe out: KubeRay's own checks the proxy. Hosts without one then stay NotReady, "
                "which keeps requests away and has no other effect"
            )
            yield warning(probe, why, instead)


@rule(ServeConfig, "service-endpoints", "KubeRay 1.7: excludeHeadPodFromServeSvc; proxy_location")
def endpoints(config: ServeConfig) -> Iterator[Problem]:
    """A service whose only proxy is on the head does not exclude the head."""
    exclude = config.cluster.manifest.spec["excludeHeadPodFromServeSvc"]
    if exclude.value is True and config.head_only:
        why = "excludes the head, where HeadOnly runs the only proxy: the Service has no endpoint and is never Ready"
        yield error(exclude, why, "remove excludeHeadPodFromServeSvc, or write proxy_location: EveryNode")


@rule(ServeConfig, "drain", "Kubernetes: terminationGracePeriodSeconds; Ray 2.60: ray start --block on SIGTERM")
def drains(config: ServeConfig) -> Iterator[Problem]:
    """A Pod that is told to stop lives long enough for its replicas to finish their requests."""
    wanted = max(_drain_timeouts(config), default=0.0)
    may = f"replicas may take {wanted:g} s to finish their requests, and"
    for group in config.cluster.groups if wanted else ():
        if group.ray is None or group.pod.spot:  # see `spot-shutdown`: there is no such time
            continue
        grace, ray = group.pod.spec["terminationGracePeriodSeconds"], group.env.get(_RAY_WAITS)
        has = grace.number if grace.present else _DEFAULT_S
        if has is not None and has <= wanted:
            why = f"{may} Kubernetes kills the Pod after {has} s: draining its node cuts streams"
            yield warning(grace, why, f"write terminationGracePeriodSeconds: {int(wanted) + _DEFAULT_S}")
        written = str(ray.value) if ray else str(_DEFAULT_S)
        if (group.cluster.ray_version or (0,)) >= _DRAINS and written.isdigit() and int(written) < wanted:
            why = f"{may} Ray stops its node {written} s after SIGTERM: draining the node cuts streams"
            yield warning(ray or group.ray["env"], why, f'add {_RAY_WAITS} with the value "{int(wanted) + 5}" to env')


def _drain_timeouts(config: ServeConfig) -> Iterator[float]:
    """Drain timeouts of replicas in seconds, where known."""
    for deployment in config.deployments:
        yield deployment["graceful_shutdown_timeout_s"].amount
    for application in config.applications:
        model, told = model_of(application), application["args"]["drain_timeout_s"]
        field = model.model_fields.get("drain_timeout_s") if model else None
        if field is not None and not told.placeholder:
            yield told.amount if told.present else float(field.default)
