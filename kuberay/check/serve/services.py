"""RayServices: upgrades, readiness of workers, and what else KubeRay refuses in them."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Cluster
from kuberay.check.pods import TPU
from kuberay.check.rules import Problem, error, meant, note, rule, warning
from kuberay.check.serve_documents import ServeConfig

_OPERATOR = "KubeRay 1.7: ValidateRayServiceSpec"
_UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
_GO_DURATION = re.compile(r"^\+?(\d+(\.\d*)?(ns|us|ms|s|m|h))+$")


@rule(
    Cluster, "upgrade-capacity", "KubeRay 1.7: a second RayCluster runs beside the first (kuberay#1476, #2274, #4239)"
)
def upgrade_capacity(cluster: Cluster) -> Iterator[Problem]:
    """A new cluster for each change of the spec needs every TPU twice; that is the default too."""
    if cluster.manifest.kind != "RayService" or not any(group.tpu for group in cluster.groups):
        return
    strategy = cluster.manifest.spec["upgradeStrategy"]
    kind = strategy["type"]
    if kind.present and kind.value != "NewCluster":
        return
    yield warning(
        kind,
        ("is NewCluster" if kind.present else "is left out, which means NewCluster")
        + f": a change of rayClusterConfig starts a second cluster beside the first, which needs all of its {TPU} "
        "again; where they are scarce it stays Pending for ever (kuberay#1476, #2274, #4239)",
        "write upgradeStrategy.type: None and replace the service yourself, or NewClusterWithIncrementalUpgrade; keep "
        "NewCluster only where twice the TPUs are at hand",
    )


@rule(Cluster, "upgrade-options", "KubeRay 1.7: ValidateClusterUpgradeOptions")
def upgrade_options(cluster: Cluster) -> Iterator[Problem]:
    """An incremental upgrade needs the autoscaler, steps, an interval and a gateway class."""
    if cluster.manifest.kind != "RayService":
        return
    strategy = cluster.manifest.spec["upgradeStrategy"]
    kind, options = strategy["type"], strategy["clusterUpgradeOptions"]
    if kind.text is not None and kind.text not in _UPGRADES:
        yield error(
            kind,
            f"{kind.text} is no upgrade of a RayService: the KubeRay operator refuses it",
            meant(kind.text, _UPGRADES, f"write one of {', '.join(_UPGRADES)}"),
        )
    if kind.text != "NewClusterWithIncrementalUpgrade":
        if options.present:
            yield note(
                options,
                "is for NewClusterWithIncrementalUpgrade and ignored with any other type",
                "write that type, or take the options out",
            )
        return
    if not cluster.autoscaling:
        yield error(
            kind,
            "an incremental upgrade without enableInTreeAutoscaling: the KubeRay operator refuses it",
            "write enableInTreeAutoscaling: true",
        )
    if not options.present:
        yield error(
            options,
            "an incremental upgrade without clusterUpgradeOptions: the KubeRay operator refuses it",
            "write stepSizePercent, intervalSeconds and gatewayClassName",
        )
        return
    surge, step, interval = (options[key] for key in ("maxSurgePercent", "stepSizePercent", "intervalSeconds"))
    most = surge.number if surge.number is not None else 100
    if not 0 <= most <= 100:
        yield error(surge, "is no percentage from 0 to 100: the KubeRay operator refuses it", "write 0 to 100")
    if step.number is not None and not 0 <= step.number <= 100:
        yield error(
            step, "stepSizePercent must be 0 to 100: the KubeRay operator refuses the RayService", "write 0 to 100"
        )
    elif (step.number or 0) > most:
        yield error(
            step,
            f"a step of {step.number} % is more than maxSurgePercent {most}: the KubeRay operator refuses it",
            f"write at most {most}",
        )
    if interval.number is not None and interval.number <= 0:
        yield error(
            interval,
            "intervalSeconds must be more than 0: the KubeRay operator refuses the RayService",
            "write seconds, such as 30",
        )
    if options["gatewayClassName"].value == "":
        yield error(
            options["gatewayClassName"],
            "is empty: the KubeRay operator refuses the RayService",
            "write a class that the cluster has, such as gke-l7-regional-external-managed",
        )


@rule(ServeConfig, "serve-readiness", "KubeRay 1.7: initLivenessAndReadinessProbe, BuildServeService (kuberay#1808)")
def readiness(config: ServeConfig) -> Iterator[Problem]:
    """Readiness alone keeps hosts without a Serve proxy out of NAME-serve-svc; KubeRay's own probe asks for one."""
    for group in config.cluster.groups:
        if not group.pod.containers or not (group.multi_host or config.head_only):
            continue
        container = group.pod.containers[0]
        probe = container["readinessProbe"]
        named = {port["name"].text: port["containerPort"].number for port in container["ports"]}
        port = probe.at("httpGet", "port")
        asked = named.get(port.text) if port.text else port.number
        if not probe.present or asked == config.http_port or f":{config.http_port}/" in str(probe["exec"].value):
            continue
        reason = (
            "proxy_location HeadOnly starts no Serve proxy on workers"
            if config.head_only
            else "Serve starts a proxy only on hosts with a replica, one of each slice"
        )
        yield warning(
            probe,
            f"NAME-serve-svc sends requests to every worker that is Ready, and this probe does not ask for a Serve "
            f"proxy on port {config.http_port}; {reason}, so requests to the other hosts are refused (kuberay#1808)",
            "leave readinessProbe out: KubeRay's own asks for the proxy. Hosts without one then stay NotReady, which "
            "keeps requests away and stops nothing else",
        )


@rule(Cluster, "head-service-name", _OPERATOR)
def head_service(cluster: Cluster) -> Iterator[Problem]:
    """The head Service of a RayService has a name of KubeRay's own."""
    name = cluster.head.at("headService", "metadata", "name")
    if cluster.manifest.kind == "RayService" and name.present and name.value != "":
        yield error(
            name,
            "the KubeRay operator names the head Service of a RayService itself and refuses a name",
            "take metadata.name out of headService",
        )


@rule(Cluster, "service-timing", "KubeRay 1.7: validateInitializingTimeout")
def timing(cluster: Cluster) -> Iterator[Problem]:
    """The initializing timeout is a positive duration, the deletion delay not negative."""
    manifest = cluster.manifest
    if manifest.kind != "RayService":
        return
    timeout = manifest.metadata["annotations"]["ray.io/initializing-timeout"]
    text = str(timeout.value or "")
    seconds = re.fullmatch(r"[+-]?\d+", text)
    if (
        text
        and not timeout.placeholder
        and (int(text) <= 0 if seconds else not _GO_DURATION.match(text) or not re.search("[1-9]", text))
    ):
        yield error(
            timeout,
            f"{text!r} is no positive duration: the KubeRay operator refuses the RayService",
            "write seconds, or a duration such as 30m",
        )
    delay = manifest.spec["rayClusterDeletionDelaySeconds"]
    if (delay.number or 0) < 0:
        yield error(delay, "is negative: the KubeRay operator refuses the RayService", "write seconds, such as 60")
    for old in ("serviceUnhealthySecondThreshold", "deploymentUnhealthySecondThreshold"):
        if manifest.spec[old].present:
            yield note(manifest.spec[old], "KubeRay has ignored it since 1.2", "take it out")


@rule(ServeConfig, "service-endpoints", "KubeRay 1.7: excludeHeadPodFromServeSvc; proxy_location")
def endpoints(config: ServeConfig) -> Iterator[Problem]:
    """A service whose only proxy is on the head must not leave the head out."""
    exclude = config.cluster.manifest.spec["excludeHeadPodFromServeSvc"]
    if exclude.true and config.head_only:
        yield error(
            exclude,
            "leaves the head out of the Service while proxy_location HeadOnly runs the only proxy "
            "there: the Service has no endpoint, and the RayService never becomes Ready",
            "take excludeHeadPodFromServeSvc out, or write proxy_location: EveryNode",
        )
