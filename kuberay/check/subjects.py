"""The subjects of rules: an object, and the clusters, groups, Pods, containers and Jobs in it."""

from collections.abc import Iterator
from typing import Any

from kuberay.check.manifests import BatchJob, Manifest, RayCluster
from kuberay.check.pods import Pod
from kuberay.check.serve_documents import serve_config

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
