"""Options of a RayCluster beside its groups: authentication, fault tolerance, TLS, network, history."""

from collections.abc import Iterator

from kuberay.check.manifests import Cluster
from kuberay.check.nodes import version
from kuberay.check.rules import Problem, error, note, rule, warning

_OPERATOR = "KubeRay 1.7: ValidateRayClusterSpec"
_GATES = {
    "networkPolicy": "RayClusterNetworkPolicy",
    "tlsOptions": "RayClusterMTLS",
    "historyServerOptions": "RayClusterHistoryServer",
}
_TLS_ENV = ("RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


@rule(Cluster, "auth", _OPERATOR)
def authentication(cluster: Cluster) -> Iterator[Problem]:
    """Token authentication needs its mode and a Ray that knows it (kuberay#2586)."""
    options = cluster.node["authOptions"]
    mode, delegated = options["mode"].text, options["enableK8sTokenAuth"]
    raw = cluster.node["rayVersion"]
    known = version(raw.text)
    if options.present and not options["mode"].present and not delegated.true:
        yield warning(
            options,
            "does not turn authentication on: the KubeRay operator acts on mode: token alone, whatever the "
            "CRD's description says of a default (kuberay#2586)",
            "write mode: token",
        )
    if mode == "token" and not raw.placeholder:
        if not raw.present:
            yield error(
                options["mode"],
                "token authentication without rayVersion: the KubeRay operator refuses it",
                "write rayVersion, 2.52.0 or later",
            )
        elif known is None or known < (2, 52, 0):
            yield error(
                raw,
                f"Ray {raw.value} knows no tokens: the KubeRay operator refuses mode: token before 2.52.0",
                "use Ray 2.52.0 or later",
            )
        elif delegated.true and known < (2, 55, 0):
            yield error(
                raw,
                f"enableK8sTokenAuth needs Ray 2.55.0: the KubeRay operator refuses it with {raw.value}",
                "use Ray 2.55.0 or later",
            )
    if not delegated.true:
        return
    if cluster.manifest.kind != "RayCluster":
        yield error(
            delegated,
            f"the KubeRay operator refuses enableK8sTokenAuth in a {cluster.manifest.kind} (kuberay#2586)",
            "take it out and keep mode: token",
        )
    elif mode != "token":
        yield error(
            delegated, "enableK8sTokenAuth without mode: token: the KubeRay operator refuses it", "write mode: token"
        )
    elif options["secretName"].present:
        yield error(
            options["secretName"],
            "secretName beside enableK8sTokenAuth: the KubeRay operator refuses it",
            "keep one of them",
        )


@rule(Cluster, "gcs-fault-tolerance", _OPERATOR + ", validateGcsFaultToleranceBackend")
def fault_tolerance(cluster: Cluster) -> Iterator[Problem]:
    """Where the head keeps its state is said in gcsFaultToleranceOptions, and nowhere else."""
    options, env = cluster.node["gcsFaultToleranceOptions"], cluster.head_env
    params = cluster.head["rayStartParams"]
    annotations = cluster.manifest.metadata["annotations"]
    enabled = annotations["ray.io/ft-enabled"]
    if options.present and enabled.present and enabled.value != "":
        yield error(
            enabled,
            "the annotation ray.io/ft-enabled beside gcsFaultToleranceOptions: the KubeRay operator "
            "refuses both together",
            "take the annotation out",
        )
    refused = []
    if not options.present and str(enabled.value).lower() != "true" and "RAY_REDIS_ADDRESS" in env:
        yield error(
            env["RAY_REDIS_ADDRESS"],
            "turns fault tolerance on by itself, which the KubeRay operator refuses",
            "write gcsFaultToleranceOptions.redisAddress",
        )
    if options.present:
        refused += [
            (params["redis-password"], "redisPassword"),
            (env.get("REDIS_PASSWORD"), "redisPassword"),
            (env.get("RAY_REDIS_ADDRESS"), "redisAddress"),
            (annotations["ray.io/external-storage-namespace"], "externalStorageNamespace"),
        ]
    refused += [(params["redis-username"], "redisUsername"), (env.get("REDIS_USERNAME"), "redisUsername")]
    for node, field in refused:
        if node is not None and node.present:
            yield error(
                node,
                f"belongs into gcsFaultToleranceOptions.{field}: the KubeRay operator refuses it here",
                f"write gcsFaultToleranceOptions.{field}",
            )
    if not options.present:
        return
    if options["backend"].text == "rocksdb":
        yield note(
            options["backend"],
            "rocksdb needs the operator's feature gate GCSFaultToleranceEmbeddedStorage, "
            "which is off in KubeRay 1.7: the operator refuses the RayCluster without it",
            "turn the gate on, or use redis",
        )
        for field in ("redisAddress", "redisUsername", "redisPassword", "externalStorageNamespace"):
            if options[field].present:
                yield error(
                    options[field],
                    f"{field} beside backend: rocksdb: the KubeRay operator refuses it",
                    f"take {field} out",
                )
        storage = options["storage"]
        if storage["claimName"].text and any(
            storage[key].present for key in ("size", "storageClassName", "accessModes")
        ):
            yield error(
                storage,
                "claimName beside size, storageClassName or accessModes: the KubeRay operator refuses them together",
                "keep claimName alone, or leave it out",
            )
    elif options["storage"].present:
        yield error(
            options["storage"],
            "storage is for backend: rocksdb: the KubeRay operator refuses it with redis",
            "write backend: rocksdb, or take storage out",
        )


@rule(Cluster, "feature-gate", _OPERATOR)
def feature_gates(cluster: Cluster) -> Iterator[Problem]:
    """Options whose feature gate is off by default: the operator refuses the RayCluster where it is off."""
    for key, gate in _GATES.items():
        if cluster.node[key].present:
            yield note(
                cluster.node[key],
                f"{key} needs the operator's feature gate {gate}, which is off in KubeRay 1.7: "
                "without it the operator refuses the RayCluster",
                f"turn the gate on, or take {key} out",
            )


@rule(Cluster, "tls", "KubeRay 1.7: validateTLSOptions")
def tls(cluster: Cluster) -> Iterator[Problem]:
    """With tlsOptions the operator sets Ray's TLS environment itself."""
    if not cluster.node["tlsOptions"]["enabled"].true:
        return
    environments = [cluster.head_env, *(group.pod.env(0) for group in cluster.groups)]
    environments.append({str(item["name"].value): item for item in cluster.node.at("autoscalerOptions", "env")})
    for environment in environments:
        for name in _TLS_ENV:
            if name in environment:
                yield error(
                    environment[name],
                    f"{name} beside tlsOptions: the KubeRay operator refuses it",
                    f"take {name} out; the operator sets it",
                )


@rule(Cluster, "network-policy", "KubeRay 1.7: validateNetworkPolicy")
def network_policy(cluster: Cluster) -> Iterator[Problem]:
    """Rules for a direction need a mode that closes it, and DNS needs a rule of its own."""
    policy = cluster.node["networkPolicy"]
    if not policy.present:
        return
    mode = policy["mode"].text or "DenyAll"
    open_rules = {"DenyAllEgress": "ingressRules", "DenyAllIngress": "egressRules"}.get(mode)
    parts = [policy["head"], policy["worker"], *policy["workerGroups"]]
    for part in parts:
        if open_rules and list(part[open_rules]):
            yield error(
                part[open_rules],
                f"mode {mode} leaves that direction open: the KubeRay operator refuses the rules",
                f"take {open_rules} out, or write mode: DenyAll",
            )
    names = {group.name for group in cluster.groups}
    for part in policy["workerGroups"]:
        if part["groupName"].text not in names:
            yield error(
                part["groupName"],
                f"there is no worker group {part['groupName'].value}: the KubeRay operator refuses the policy",
                f"write one of {', '.join(sorted(names))}",
            )
    if mode != "DenyAllIngress" and not any(list(part["egressRules"]) for part in parts):
        yield warning(
            policy,
            f"mode {mode} closes DNS too: workers cannot resolve the head's name, and the cluster never starts",
            "add egressRules that allow port 53 to kube-dns",
        )


@rule(Cluster, "history-server", "KubeRay 1.7: validateCollectorOptions")
def history_server(cluster: Cluster) -> Iterator[Problem]:
    """The history server's collector needs an image and a storage backend."""
    options = cluster.node["historyServerOptions"]
    if not options.present:
        return
    collector = options["collectorOptions"]
    if not collector.present or not collector["image"].present:
        yield error(
            collector["image"],
            "has no collector image: the KubeRay operator refuses the RayCluster",
            "write historyServerOptions.collectorOptions.image",
        )
    elif "STORAGE_BACKEND" not in {item["name"].value for item in collector["env"]}:
        yield error(
            collector["env"],
            "STORAGE_BACKEND is not set: the KubeRay operator refuses the RayCluster",
            "set STORAGE_BACKEND to GCS, S3, AzureBlob or AliyunOSS, with its bucket",
        )


@rule(Cluster, "managed-by", "KubeRay 1.7: validation rule of the CRD")
def managed_by(cluster: Cluster) -> Iterator[Problem]:
    """managedBy names one of two controllers."""
    for node in (cluster.node["managedBy"], cluster.manifest.spec["managedBy"]):
        if node.text is not None and node.text not in ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"):
            yield error(
                node,
                f"{node.text} is no controller that the CRD's schema allows: the API server refuses it",
                "write ray.io/kuberay-operator, kueue.x-k8s.io/multikueue, or nothing",
            )
            return
