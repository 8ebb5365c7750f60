"""RayServices: upgrades, readiness of workers, and where requests end up."""

from collections.abc import Iterator

from kuberay.check.manifests import Cluster
from kuberay.check.rules import Problem, error, rule, warning
from kuberay.check.serve_documents import ServeConfig
from ray_configs.labels import TPU


@rule(
    Cluster, "upgrade-capacity", "KubeRay 1.7: a second RayCluster runs beside the first (kuberay#1476, #2274, #4239)"
)
def upgrade_capacity(cluster: Cluster) -> Iterator[Problem]:
    """A new cluster for each change of the spec needs every TPU twice; that is the default too."""
    kind = cluster.upgrade["type"]
    if not cluster.service or not any(group.tpu for group in cluster.groups) or kind.value not in (None, "NewCluster"):
        return
    yield warning(
        kind,
        ("is NewCluster" if kind.present else "is left out, which means NewCluster")
        + f": a change of rayClusterConfig starts a second cluster beside the first, which needs all of its {TPU} "
        "again; where they are scarce it stays Pending for ever (kuberay#1476, #2274, #4239)",
        "write upgradeStrategy.type: None and replace the service yourself, or NewClusterWithIncrementalUpgrade; keep "
        "NewCluster only where twice the TPUs are at hand",
    )


@rule(ServeConfig, "serve-readiness", "KubeRay 1.7: initLivenessAndReadinessProbe, BuildServeService (kuberay#1808)")
def readiness(config: ServeConfig) -> Iterator[Problem]:
    """Readiness alone keeps hosts without a Serve proxy out of NAME-serve-svc; KubeRay's own probe asks for one."""
    reason = (
        "proxy_location HeadOnly starts no Serve proxy on workers"
        if config.head_only
        else "Serve starts a proxy only on hosts with a replica, one of each slice"
    )
    for group in config.cluster.groups:
        if group.ray is None or not (group.multi_host or config.head_only):
            continue
        probe = group.ray["readinessProbe"]
        port = probe.at("httpGet", "port")
        asked = group.ray.ports.get(port.text or "", port).number
        if not probe.present or asked == config.http_port or f":{config.http_port}/" in str(probe["exec"].value):
            continue
        yield warning(
            probe,
            f"NAME-serve-svc sends requests to every worker that is Ready, and this probe does not ask for a Serve "
            f"proxy on port {config.http_port}; {reason}, so requests to the other hosts are refused (kuberay#1808)",
            "leave readinessProbe out: KubeRay's own asks for the proxy. Hosts without one then stay NotReady, which "
            "keeps requests away and stops nothing else",
        )


@rule(ServeConfig, "service-endpoints", "KubeRay 1.7: excludeHeadPodFromServeSvc; proxy_location")
def endpoints(config: ServeConfig) -> Iterator[Problem]:
    """A service whose only proxy is on the head must not leave the head out."""
    exclude = config.cluster.manifest.spec["excludeHeadPodFromServeSvc"]
    if exclude.true and config.head_only:
        yield error(
            exclude,
            "leaves the head out of the Service while proxy_location HeadOnly runs the only proxy there: the Service "
            "has no endpoint, and the RayService never becomes Ready",
            "take excludeHeadPodFromServeSvc out, or write proxy_location: EveryNode",
        )
