"""A job as a Job (one host), an Indexed Job with a headless Service (several hosts) or a RayJob."""

import shlex
from typing import Any

from kuberay.render.access import service_accounts
from kuberay.render.kueue import queue_labels, queue_objects
from kuberay.render.monitoring import pod_monitoring
from kuberay.render.notes import noted
from kuberay.render.objects import kubernetes_object, metadata
from kuberay.render.overlay import merged
from kuberay.render.ray.pods import (
    gigabytes,
    host_address,
    machine_memory_gb,
    machine_quantities,
    pod_template,
    port,
    quantities,
    secrets,
    variables,
)
from kuberay.render.ray.ray_cluster import ray_cluster_spec
from ray_configs.capacity import FlexStart, Queued
from ray_configs.cluster.labels import JOB_NAME, NODE_POOL, RAY_CLUSTER
from ray_configs.job import Job

SUBMITTER_RETRIES = 6
"""As of any Kubernetes Job."""


def job_objects(job: Job) -> list[dict[str, Any]]:
    """The objects that the job refers to, then the job."""
    objects = [*service_accounts(job), *queue_objects(job)]
    if job.ray:
        return [*objects, _ray_job(job), *pod_monitoring(job)]
    if job.hosts > 1:
        objects.append(_headless_service(job))
    return [*objects, _batch_job(job)]


def _ray_job(job: Job) -> dict[str, Any]:
    spec: dict[str, Any] = {"entrypoint": shlex.join(job.command)}
    if not isinstance(job.capacity, FlexStart | Queued):
        # With those, the deadline would count while the job waits for machines, which have their own time limit.
        spec["activeDeadlineSeconds"] = int(job.max_run_hours * 3600)
    spec |= {
        "backoffLimit": job.retries,
        noted("shutdownAfterJobFinishes", "Releases the slices at once; the RayJob stays, with its status."): True,
        noted(
            "submitterConfig",
            "The submitter starts the job, then follows its log. By default, losing the head three times would "
            "fail a job that runs on.",
        ): {"backoffLimit": SUBMITTER_RETRIES},
    }
    if submitter := _submitter(job):
        spec[noted("submitterPodTemplate", "The operator's own, with what the config adds to the head.")] = submitter
    spec["rayClusterSpec"] = ray_cluster_spec(job, job.container_image, elastic=False)
    return kubernetes_object("ray.io/v1", "RayJob", metadata(job, **queue_labels(job)), spec)


def _submitter(job: Job) -> dict[str, Any] | None:
    """The submitter's Pod: None for the operator's own, which has no pull secrets, security context or the like."""
    if not (job.head.pod or job.head.container):
        return None
    container: dict[str, Any] = {
        "name": "ray-job-submitter",
        "image": job.container_image,
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "200Mi"}},
    }
    if security := job.head.container.get("securityContext"):
        container["securityContext"] = security
    added: dict[str, Any] = job.head.pod
    spec = dict(added.get("spec", {}))
    for own in ("containers", "initContainers", "volumes"):  # beside the head, for its container
        spec.pop(own, None)
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return merged(template, added | {"spec": spec})


def _headless_service(job: Job) -> dict[str, Any]:
    """A headless Service, which gives each host of the slice a name that the others can resolve."""
    spec = {
        "clusterIP": "None",
        noted("publishNotReadyAddresses", "Hosts resolve each other's names before any of them is ready."): True,
        "selector": {"job-name": job.name},
    }
    return kubernetes_object("v1", "Service", metadata(job), spec)


def _batch_job(job: Job) -> dict[str, Any]:
    several = job.hosts > 1
    spec: dict[str, Any] = {}
    if several:
        spec[noted("completions", f"The hosts of {job.slice}: all start together, each with its own index.")] = (
            job.hosts
        )
        spec["parallelism"] = job.hosts
        spec["completionMode"] = "Indexed"
        spec[noted("backoffLimit", "A single host cannot restart: the others wait for the one that died.")] = 0
    else:
        spec["backoffLimit"] = job.retries
    spec["ttlSecondsAfterFinished"] = int(job.keep_hours * 3600)
    spec["template"] = _template(job, several)
    return kubernetes_object("batch/v1", "Job", metadata(job, **queue_labels(job)), spec)


def _one_slice(job: Job) -> dict[str, Any]:
    """Affinity that keeps the job on one slice. GKE's webhook adds it only to Ray's Pods."""
    label, here = JOB_NAME, {"topologyKey": NODE_POOL}
    others = [
        [
            {"key": label, "operator": "Exists"},
            {"key": label, "operator": "NotIn", "values": [job.name]},
        ],
        [{"key": RAY_CLUSTER, "operator": "Exists"}],
    ]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return {
        "podAffinity": {required: [{"labelSelector": {"matchLabels": {label: job.name}}, **here}]},
        "podAntiAffinity": {
            required: [
                {"labelSelector": {"matchExpressions": expressions}, "namespaceSelector": {}, **here}
                for expressions in others
            ]
        },
    }


def _template(job: Job, several: bool) -> dict[str, Any]:
    scratch = gigabytes(job.scratch_gb)
    memory_gb = machine_memory_gb(job.slice) if job.slice else job.memory_gb
    if job.slice is not None:
        requests = machine_quantities(job.slice, scratch)
    else:
        requests = {"cpu": str(job.cpus), "memory": gigabytes(memory_gb), "ephemeral-storage": scratch}
    container: dict[str, Any] = {"name": "job", "image": job.container_image, "command": list(job.command)}
    if several:
        container[noted("ports", "Communication between the hosts of a slice, and their runtime's metrics.")] = [
            port("tpu", 8471),
            port("tpu-metrics", 8431),
        ]
    if env := variables(job.env) + secrets(job) + host_address(job.slice):
        container["env"] = env
    container["resources"] = quantities(requests)
    spec: dict[str, Any] = {"restartPolicy": "Never" if several else "OnFailure"}
    if several:
        spec["subdomain"] = job.name
        why = "A node pool is one slice: all hosts run in the same pool, and no other workload of a slice runs there."
        spec[noted("affinity", why)] = _one_slice(job)
    seconds = int(job.max_run_hours * 3600)
    spec[noted("activeDeadlineSeconds", "Counts from the Pod's start, not while it waits for machines.")] = seconds
    return pod_template(job, container, job.worker_groups[0], memory_gb, **spec)
