"""The subjects of rules: an object, and the clusters, groups, Pods, containers, Jobs and the Serve config in it."""

import io
from collections.abc import Iterator
from typing import Any

from kuberay.check.manifests import BatchJob, Manifest, Pod, RayCluster
from kuberay.check.nodes import Document, Node

_RAY_CLUSTER = {
    "RayCluster": ("spec",),
    "RayService": ("spec", "rayClusterConfig"),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayCronJob": ("spec", "jobTemplate", "rayClusterSpec"),
}
_POD_TEMPLATES: dict[str, tuple[tuple[str, ...], ...]] = {
    "Pod": ((),),
    "PodTemplate": (("template",),),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), (("spec", "template"),)),
    "LeaderWorkerSet": tuple(("spec", "leaderWorkerTemplate", name) for name in ("leaderTemplate", "workerTemplate")),
}


def subjects_of(manifest: Manifest) -> Iterator[Any]:
    """Yields the object itself, then everything in it that rules examine."""
    yield manifest
    node, kind = manifest.node, manifest.kind
    pods, jobs = [Pod(manifest, node.at(*path), "workload") for path in _POD_TEMPLATES.get(kind, ())], []
    if manifest.ray:
        cluster = RayCluster(manifest, node.at(*_RAY_CLUSTER[kind]))
        if cluster.node.present:
            yield cluster
            yield from cluster.all_groups
            pods += [group.pod for group in cluster.all_groups]
            yield from serve_config(cluster)
        if manifest.ray_job is not None:
            pods.append(Pod(manifest, manifest.ray_job["submitterPodTemplate"], "submitter"))
    elif kind in ("Job", "CronJob"):
        jobs.append(BatchJob(manifest, node if kind == "Job" else node.at("spec", "jobTemplate")))
    elif kind == "JobSet":
        jobs += [BatchJob(manifest, each["template"], in_job_set=True) for each in node.at("spec", "replicatedJobs")]
    yield from (job for job in jobs if job.hosts > 1)  # a Job on one host needs no rules for slices
    for pod in (*pods, *(job.pod for job in jobs)):
        if pod.node.present:
            yield pod
            yield from pod.init_containers
            yield from pod.containers


class ServeConfig:
    """serveConfigV2, a YAML string in a RayService: `source`, and `node`, parsed, which keeps its lines in the file."""

    schema = "ServeDeploySchema"
    refused = "Ray Serve refuses the config"

    def __init__(self, cluster: RayCluster, source: Node, node: Node, unreadable: str = "") -> None:
        self.cluster, self.source, self.node = cluster, source, node
        self.unreadable = unreadable
        """The parser's message if the string is not valid YAML."""
        self.applications = list(node["applications"])
        self.deployments = [each for application in self.applications for each in application["deployments"]]
        """Deployments of all applications."""
        http, grpc = node["http_options"]["port"], node["grpc_options"]["port"]
        self.http_port = http.number if http.present else 8000
        """Port that Serve listens on; None if it is a placeholder."""
        serves_grpc = bool(node["grpc_options"]["grpc_servicer_functions"].value)
        self.grpc_port = (grpc.number if grpc.present else 9000) if serves_grpc else None
        """Port that Serve listens on for gRPC, if any."""
        self.head_only = node["proxy_location"].value == "HeadOnly"
        """Whether only the head runs a proxy."""


def serve_config(cluster: RayCluster) -> Iterator[ServeConfig]:
    """The Serve config of a cluster's RayService; nothing for other kinds, or if it is not a string."""
    source = cluster.manifest.spec["serveConfigV2"]
    if not cluster.service or not isinstance(source.value, str | None):
        return
    # A literal block starts on the line below its key; other styles lose their line breaks.
    literal = source.line if "Literal" in type(source.value).__name__ else None
    root, unreadable = _parsed(source.value or "")
    outer = source.document
    prefix = source.where.removeprefix(outer.title).strip()
    document = Document(root, outer.title, outer.file, prefix, lines_above=literal, line=source.line)
    yield ServeConfig(cluster, source, document.node, unreadable)


def _parsed(text: str) -> tuple[Any, str]:
    """The parsed YAML, or the parser's message."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML().load(io.StringIO(text)), ""
    except (YAMLError, RecursionError, ValueError, NotImplementedError) as error:
        if isinstance(error, MarkedYAMLError) and error.problem_mark:
            return None, f"{' '.join((error.problem or 'it').split())}, on its line {error.problem_mark.line + 1}"
        return None, " ".join(str(error).split()) or "it"
