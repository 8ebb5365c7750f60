"""Batch Jobs on TPU slices: as many Pods as hosts, resolvable names, and no restart of a single host."""

from collections.abc import Iterator

from kuberay.check.manifests import BatchJob
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, note, rule, warning
from ray_configs.cluster.labels import (
    DYNAMIC_SLICE,
    EXCLUSIVE_TOPOLOGY,
    JOB_CONTROLLER,
    JOB_NAME,
    KUEUE_TOPOLOGY,
    NODE_POOL,
)

_GIVEN_NAME = ("job-name", JOB_NAME)
"""Labels that Kubernetes gives to a Job's Pods, with the Job's name."""
_GIVEN_ID = ("controller-uid", JOB_CONTROLLER)


@rule(BatchJob, "job-restart", "Kubernetes: restartPolicy OnFailure restarts a container in place")
def restart(job: BatchJob) -> Iterator[Problem]:
    """Hosts of a slice restart together, not one container alone."""
    node = job.pod.spec["restartPolicy"]
    if node.value == "OnFailure" and not job.pathways:
        why = "restarts one host's container alone: its peers wait in a collective for a program that starts over"
        yield warning(node, why, "write Never, and retry the whole Job")


@rule(BatchJob, "job-hosts", "GKE: a slice runs only with all of its hosts")
def pods_and_hosts(job: BatchJob) -> Iterator[Problem]:
    """completions and parallelism equal the hosts of the slice; the replicas of a JobSet are slices."""
    hosts, pod = job.hosts, job.pod
    what = f"{pod.topology.value} with {pod.chips} chips a Pod is a slice of {hosts} hosts"
    for node in (job.spec["completions"], job.spec["parallelism"]):
        count = node.number if node.present else 1
        if node.placeholder or count is None or count == hosts:
            continue
        if count > hosts and count % hosts == 0:
            why = f"{what}, and {count} Pods are {count // hosts} slices: they share one set of worker numbers, so JAX "
            yield warning(node, why + "takes them for one slice", "create one Job for each slice, or a JobSet")
        else:
            why = f"{what}, but {node.path[-1]} is {count}: JAX waits for the missing hosts and hangs"
            slices = "; the replicas of a JobSet are slices" if job.in_job_set else ""
            yield error(node, why, f"write {node.path[-1]}: {hosts}{slices}")


@rule(BatchJob, "job-indexed", "Kubernetes: an Indexed Job numbers its Pods; GKE sets TPU_WORKER_ID from that")
def indexed(job: BatchJob) -> Iterator[Problem]:
    """completionMode is Indexed, which numbers the hosts of a slice; a JobSet sets that itself."""
    node = job.spec["completionMode"]
    if node.value != "Indexed" and not node.placeholder and (node.present or not job.in_job_set):
        why = "the hosts of the slice get no numbers: each believes that it is worker 0, and JAX hangs"
        yield error(node, why, "write completionMode: Indexed")


@rule(BatchJob, "job-retries", "Kubernetes: backoffLimit, 6 by default")
def retries(job: BatchJob) -> Iterator[Problem]:
    """A failed host is not retried alone, while its peers hang in a collective."""
    node = job.spec["backoffLimit"]
    if node.value != 0 and not node.placeholder and not job.pathways:
        said = node.value if node.present else "6, the default"
        why = f"backoffLimit is {said}: a failed host restarts alone, while the others hang"
        yield warning(node, why, "write backoffLimit: 0, and retry the whole Job")


@rule(BatchJob, "job-service", "Kubernetes: a headless Service makes Pod names resolve")
def headless_service(job: BatchJob) -> Iterator[Problem]:
    """Hosts of a slice find each other through a headless Service, which is the subdomain of their Pods."""
    subdomain, manifest = job.pod.spec["subdomain"], job.manifest
    if job.in_job_set or subdomain.placeholder:
        return
    lost = "the hosts' names do not resolve, and JAX hangs"
    wanted = ("Service", subdomain.text, manifest.namespace)
    services = [other for other in manifest.others if (other.kind, other.name, other.namespace) == wanted]
    if subdomain.text is None:
        instead = "write subdomain: the name of a headless Service, and add that Service"
        yield error(subdomain, f"the Pods have no subdomain: {lost}", instead)
    elif not services:
        why = f"there is no Service {subdomain.text} among these objects: unless it exists already, {lost}"
        instead = "add a Service of that name with clusterIP: None that selects the Job's Pods"
        yield warning(subdomain, why, instead)
    else:
        address = services[0].spec["clusterIP"]
        if address.value != "None":
            yield error(
                address, f"is not None, but only a headless Service gives names: {lost}", "write clusterIP: None"
            )
        yield from _selector(job, services[0].spec["selector"], lost)


def _selector(job: BatchJob, selector: Node, lost: str) -> Iterator[Problem]:
    name = job.manifest.name
    labels = {key: node.value for key, node in job.pod.node.at("metadata", "labels").fields.items()}
    labels.update(dict.fromkeys(_GIVEN_NAME, name))
    for key, node in selector.fields.items():
        if not node.placeholder and key not in _GIVEN_ID and labels.get(key) != node.value:
            has = f"have {labels[key]!r}" if key in labels else "have no such label"
            why = f"selects {key}: {node.value}, but the Pods of Job {name} {has}: {lost}"
            yield error(node, why, f"write {key}: {labels.get(key, '...')}, or label the Pods")
    if not selector.fields:
        yield error(selector, f"selects no Pods: {lost}", f"write selector: {{job-name: {name}}}")


@rule(BatchJob, "job-slice", "Kubernetes: the scheduler ignores slices; GKE: a node pool is one slice")
def one_slice(job: BatchJob) -> Iterator[Problem]:
    """An affinity keeps the Pods of a Job on one slice if several are free; nothing else does."""
    spec, manifest = job.pod.spec, job.manifest
    templates = [entry.at("template", "metadata") for entry in manifest.spec["replicatedJobs"]]
    annotated = any(
        place["annotations"][EXCLUSIVE_TOPOLOGY].present
        for place in (manifest.metadata, job.node["metadata"], *templates)
    )
    placed = {NODE_POOL, DYNAMIC_SLICE, KUEUE_TOPOLOGY} & set(spec["nodeSelector"].fields)
    if (job.in_job_set and annotated) or placed or spec["affinity"].present:
        return
    why = "nothing keeps the hosts together: if two such slices are free, the Pods may go to both, and JAX hangs"
    instead = "add a podAffinity to the Pods of this Job (label batch.kubernetes.io/job-name) with topologyKey "
    instead = f"annotate {EXCLUSIVE_TOPOLOGY}: " if job.in_job_set else instead
    yield note(spec["affinity"], why, instead + NODE_POOL)
