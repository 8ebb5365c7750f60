"""What rules are asked about: an object, and everything in it that some rule may be about."""

from collections.abc import Iterator
from typing import Any

from kuberay.check.manifests import Cluster, Job, Manifest, Workload
from kuberay.check.nodes import Node
from kuberay.check.pods import Pod
from kuberay.check.serve_documents import serve_config

_CLUSTER_SPEC = {
    "RayCluster": ("spec",),
    "RayService": ("spec", "rayClusterConfig"),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayCronJob": ("spec", "jobTemplate", "rayClusterSpec"),
}
_POD_TEMPLATE = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "PodTemplate": ("template",),
}


def subjects_of(manifest: Manifest) -> Iterator[Any]:
    """The object itself and everything in it that some rule may be about."""
    yield manifest
    node, kind = manifest.node, manifest.kind
    if manifest.ray:
        cluster = Cluster(manifest, node.at(*_CLUSTER_SPEC[kind]))
        if cluster.node.present:
            yield cluster
            for group in cluster.all_groups:
                yield group
                yield from _pod(group.pod)
            yield from _serve(cluster)
        job = {"RayJob": node["spec"], "RayCronJob": node.at("spec", "jobTemplate")}.get(kind)
        if job is not None and job["submitterPodTemplate"].present:
            yield from _pod(Pod(job["submitterPodTemplate"], "submitter"))
    elif kind == "Pod":
        yield from _workload(manifest, node)
    elif kind in _POD_TEMPLATE:
        yield from _workload(manifest, node.at(*_POD_TEMPLATE[kind]))
    elif kind == "Job":
        yield from _job(Job(manifest, node))
    elif kind == "CronJob":
        yield from _job(Job(manifest, node.at("spec", "jobTemplate")))
    elif kind == "JobSet":
        for replicated in node.at("spec", "replicatedJobs"):
            yield from _job(Job(manifest, replicated["template"], in_job_set=True))
    elif kind == "LeaderWorkerSet":
        for name in ("leaderTemplate", "workerTemplate"):
            template = node.at("spec", "leaderWorkerTemplate", name)
            if template.present:
                yield from _workload(manifest, template)


def _serve(cluster: Cluster) -> Iterator[Any]:
    config = serve_config(cluster)
    if config is not None:
        yield config
        for application in config.applications:
            yield application
            yield from application.deployments


def _job(job: Job) -> Iterator[Any]:
    yield job
    yield from _pod(job.pod)


def _workload(manifest: Manifest, template: Node) -> Iterator[Any]:
    pod = Pod(template, "workload")
    yield Workload(manifest, pod)
    yield from _pod(pod)


def _pod(pod: Pod) -> Iterator[Any]:
    yield pod
    for container in pod.all_containers:
        yield container
        yield from container.variables
