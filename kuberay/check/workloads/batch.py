"""Batch Jobs on TPU slices: as many Pods as hosts, names to find each other by, and no retry of a single host."""

from collections.abc import Iterator

from kuberay.check.manifests import Job
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, note, rule, warning
from ray_configs.labels import (
    DYNAMIC_SLICE,
    EXCLUSIVE_TOPOLOGY,
    JOB_CONTROLLER,
    JOB_NAME,
    KUEUE_TOPOLOGY,
    NODE_POOL,
    TPU,
)

_JOB_LABELS = ("job-name", JOB_NAME)
_CONTROLLER_LABELS = ("controller-uid", JOB_CONTROLLER)


@rule(Job, "job-restart", "Kubernetes API server")
def restart(job: Job) -> Iterator[Problem]:
    """Pods of a Job end: restartPolicy Always, the default of Pods, is refused."""
    node = job.pod.spec["restartPolicy"]
    if not node.present and job.in_job_set:
        return
    if not node.placeholder and node.value not in ("Never", "OnFailure"):
        said = node.value if node.present else "left out, which means Always"
        instead = "write Never" + ("" if job.hosts > 1 else " or OnFailure")
        yield error(node, f"restartPolicy is {said}: the API server refuses the Job", instead)
    elif node.value == "OnFailure" and job.hosts > 1:
        why = (
            "restarts one host's container by itself: the other hosts of the slice wait in a collective for a program "
            "that starts over, and hang"
        )
        yield warning(node, why, "write Never, and retry the whole Job")


@rule(Job, "job-hosts", "GKE: a slice runs when all of its hosts do")
def pods_and_hosts(job: Job) -> Iterator[Problem]:
    """completions and parallelism are the hosts of the slice."""
    hosts, pod = job.hosts, job.pod
    what = f"{pod.topology.value} with {pod.chips} chips a Pod is a slice of {hosts} hosts"
    for node in (job.spec["completions"], job.spec["parallelism"]):
        count = node.number if node.present else 1
        if hosts == 1 or node.placeholder or count is None or count == hosts:
            continue
        if count > hosts and count % hosts == 0:
            why = f"{what}, and {count} Pods are {count // hosts} slices: they share one set of worker numbers, so JAX "
            yield warning(node, why + "takes them for one slice", "make one Job for each slice, or a JobSet")
        else:
            why = f"{what}, but {node.path[-1]} is {count}: JAX waits for the missing hosts and hangs, and GKE starts "
            yield error(node, why + "no slice in part", f"write {node.path[-1]}: {hosts}")


@rule(Job, "job-indexed", "Kubernetes: an Indexed Job numbers its Pods; GKE sets TPU_WORKER_ID from that")
def indexed(job: Job) -> Iterator[Problem]:
    """Hosts of a slice are numbered, which completionMode Indexed does; a JobSet makes its Jobs Indexed itself."""
    node = job.spec["completionMode"]
    if job.hosts > 1 and node.value != "Indexed" and not node.placeholder and (node.present or not job.in_job_set):
        why = "the hosts of the slice get no numbers: each takes itself for worker 0, and JAX hangs"
        yield error(node, why, "write completionMode: Indexed")


@rule(Job, "job-retries", "Kubernetes: backoffLimit, 6 by default")
def retries(job: Job) -> Iterator[Problem]:
    """One failed host is replaced while its peers hang in a collective."""
    node = job.spec["backoffLimit"]
    if job.hosts > 1 and node.value != 0 and not node.placeholder:
        said = node.value if node.present else "6, the default"
        why = f"backoffLimit is {said}: a failed host is started again alone, while the others hang"
        yield warning(node, why, "write backoffLimit: 0, and retry the whole Job")


@rule(Job, "job-service", "Kubernetes: a headless Service makes Pod names resolve")
def headless_service(job: Job) -> Iterator[Problem]:
    """Hosts of a slice find each other through a headless Service that the Pods name as their subdomain."""
    subdomain, manifest = job.pod.spec["subdomain"], job.manifest
    if job.hosts == 1 or job.in_job_set or subdomain.placeholder:
        return
    services = [
        other
        for other in manifest.others
        if (other.kind, other.name, other.namespace) == ("Service", subdomain.text, manifest.namespace)
    ]
    if subdomain.text is None:
        why = "the Pods have no subdomain: GKE cannot set TPU_WORKER_HOSTNAMES to names that resolve, and JAX hangs"
        yield error(subdomain, why, "write subdomain: the name of a headless Service, and add that Service")
    elif not services:
        yield warning(
            subdomain,
            f"there is no Service {subdomain.text} among these objects: unless it exists already, the hosts' names do "
            "not resolve and JAX hangs",
            "add a Service of that name with clusterIP: None that selects the Job's Pods",
        )
    else:
        address = services[0].spec["clusterIP"]
        if address.value != "None":
            why = "is not None: only a headless Service gives each host of the slice a name, and JAX hangs without"
            yield error(address, why, "write clusterIP: None")
        yield from _selector(job, services[0].spec["selector"])


def _selector(job: Job, selector: Node) -> Iterator[Problem]:
    name, lost = job.manifest.name, "the hosts' names do not resolve, and JAX hangs"
    labels = {key: node.value for key, node in job.pod.node.at("metadata", "labels").fields.items()}
    labels.update(dict.fromkeys(_JOB_LABELS, name))
    for key, node in selector.fields.items():
        if not node.placeholder and key not in _CONTROLLER_LABELS and labels.get(key) != node.value:
            has = f"have {labels[key]!r}" if key in labels else "have no such label"
            why = f"selects {key}: {node.value}, but the Pods of Job {name} {has}: {lost}"
            yield error(node, why, f"write {key}: {labels.get(key, '...')}, or label the Pods")
    if not selector.fields:
        yield error(selector, f"selects no Pods: {lost}", f"write selector: {{job-name: {name}}}")


@rule(Job, "job-slice", "Kubernetes: the scheduler knows no slices; GKE: a node pool is one")
def one_slice(job: Job) -> Iterator[Problem]:
    """Nothing but an affinity keeps the Pods of a Job on one slice where several are free."""
    spec = job.pod.spec
    annotated = job.in_job_set and any(
        place["annotations"][EXCLUSIVE_TOPOLOGY].present
        for place in (
            job.manifest.metadata,
            job.node["metadata"],
            *(entry.at("template", "metadata") for entry in job.manifest.spec["replicatedJobs"]),
        )
    )
    placed = {NODE_POOL, DYNAMIC_SLICE, KUEUE_TOPOLOGY}
    if job.hosts == 1 or annotated or placed & set(spec["nodeSelector"].fields) or spec["affinity"].present:
        return
    yield note(
        spec["affinity"],
        "nothing keeps the hosts together: where two slices of this topology are free, the scheduler may take hosts of "
        "both, and JAX hangs",
        f"annotate {EXCLUSIVE_TOPOLOGY}: cloud.google.com/gke-nodepool"
        if job.in_job_set
        else "add a podAffinity to the Pods of this Job (label batch.kubernetes.io/job-name) with topologyKey "
        "cloud.google.com/gke-nodepool",
    )


@rule(Job, "job-environment", "GKE sets TPU_WORKER_ID and TPU_WORKER_HOSTNAMES of Indexed Jobs")
def environment(job: Job) -> Iterator[Problem]:
    """A fixed TPU_WORKER_ID is the same on every host."""
    for container in job.pod.tpu_containers if job.hosts > 1 else ():
        variable = container.env.get("TPU_WORKER_ID")
        if variable is not None and variable.text:
            why = "TPU_WORKER_ID is the same on every host of the slice: JAX hangs until it times out"
            yield error(variable.value, why, "take it out; GKE sets it from the Pod's index")


@rule(Job, "job-slices", "GKE: TPU nodes are bought for Pods that ask for chips")
def replicated(job: Job) -> Iterator[Problem]:
    """A JobSet's replicas are slices; one that counts hosts there makes single-host Jobs of a multi-host slice."""
    if not job.in_job_set or job.hosts == 1:
        return
    for entry in job.manifest.spec["replicatedJobs"]:
        parallelism = entry.at("template", "spec", "parallelism")
        count = entry["replicas"].number
        if entry["template"].path == job.node.path and count == job.hosts and (parallelism.number or 1) == 1:
            why = (
                f"replicas of a JobSet are whole slices, not hosts: this asks for {count} slices with one Pod ({TPU}) "
                "each"
            )
            yield warning(entry["replicas"], why, f"write replicas: 1 and parallelism: {count}")
