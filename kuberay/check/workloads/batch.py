"""Batch Jobs on TPU slices: as many Pods as hosts, names to find each other by, and no retry of a single host."""

from collections.abc import Iterator

from kuberay.check.manifests import Job
from kuberay.check.nodes import Node
from kuberay.check.pods import TPU
from kuberay.check.rules import Problem, error, note, rule, warning

_JOB_LABELS = ("job-name", "batch.kubernetes.io/job-name")
_CONTROLLER_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")


def _hosts(job: Job) -> int:
    """Hosts of the slice that a Pod of the Job is one of; 1 where that is not known."""
    pod = job.pod
    if not pod.asks_tpu or pod.misfit:
        return 1
    return pod.slice_hosts or 1


@rule(Job, "job-restart", "Kubernetes API server")
def restart(job: Job) -> Iterator[Problem]:
    """Pods of a Job end: restartPolicy Always, the default of Pods, is refused."""
    node = job.pod.spec["restartPolicy"]
    if not node.present and job.in_job_set:
        return
    if not node.placeholder and node.value not in ("Never", "OnFailure"):
        said = node.value if node.present else "left out, which means Always"
        yield error(
            node,
            f"restartPolicy is {said}: the API server refuses the Job",
            "write Never" + ("" if _hosts(job) > 1 else " or OnFailure"),
        )
    elif node.value == "OnFailure" and _hosts(job) > 1:
        yield warning(
            node,
            "restarts one host's container by itself: the other hosts of the slice wait in a collective "
            "for a program that starts over, and hang",
            "write Never, and retry the whole Job",
        )


@rule(Job, "job-hosts", "GKE: a slice runs when all of its hosts do")
def pods_and_hosts(job: Job) -> Iterator[Problem]:
    """completions and parallelism are the hosts of the slice."""
    hosts, pod = _hosts(job), job.pod
    if hosts == 1:
        return
    what = f"{pod.topology.value} with {pod.chips} chips a Pod is a slice of {hosts} hosts"
    for node in (job.spec["completions"], job.spec["parallelism"]):
        count = node.number if node.present else 1
        if node.placeholder or count is None or count == hosts:
            continue
        if count > hosts and count % hosts == 0:
            yield warning(
                node,
                f"{what}, and {count} Pods are {count // hosts} slices: they share one set of worker "
                "numbers, so JAX takes them for one slice",
                "make one Job for each slice, or a JobSet",
            )
        else:
            yield error(
                node,
                f"{what}, but {node.path[-1]} is {count}: JAX waits for the missing hosts and hangs, and "
                f"GKE starts no slice in part",
                f"write {node.path[-1]}: {hosts}",
            )


@rule(Job, "job-indexed", "Kubernetes: an Indexed Job numbers its Pods; GKE sets TPU_WORKER_ID from that")
def indexed(job: Job) -> Iterator[Problem]:
    """Hosts of a slice are numbered, which completionMode Indexed does; a JobSet makes its Jobs Indexed itself."""
    node = job.spec["completionMode"]
    if _hosts(job) > 1 and node.value != "Indexed" and not node.placeholder and (node.present or not job.in_job_set):
        yield error(
            node,
            "the hosts of the slice get no numbers: each takes itself for worker 0, and JAX hangs",
            "write completionMode: Indexed",
        )


@rule(Job, "job-retries", "Kubernetes: backoffLimit, 6 by default")
def retries(job: Job) -> Iterator[Problem]:
    """One failed host is replaced while its peers hang in a collective."""
    node = job.spec["backoffLimit"]
    if _hosts(job) > 1 and node.value != 0 and not node.placeholder:
        said = node.value if node.present else "6, the default"
        yield warning(
            node,
            f"backoffLimit is {said}: a failed host is started again alone, while the others hang",
            "write backoffLimit: 0, and retry the whole Job",
        )


@rule(Job, "job-service", "Kubernetes: a headless Service makes Pod names resolve")
def headless_service(job: Job) -> Iterator[Problem]:
    """Hosts of a slice find each other through a headless Service that the Pods name as their subdomain."""
    if _hosts(job) == 1 or job.in_job_set:
        return
    subdomain = job.pod.spec["subdomain"]
    if subdomain.placeholder:
        return
    if subdomain.text is None:
        yield error(
            subdomain,
            "the Pods have no subdomain: GKE cannot set TPU_WORKER_HOSTNAMES to names that resolve, and JAX hangs",
            "write subdomain: the name of a headless Service, and add that Service",
        )
        return
    services = [
        other
        for other in job.manifest.others
        if other.kind == "Service" and other.name == subdomain.text and other.namespace == job.manifest.namespace
    ]
    if not services:
        yield warning(
            subdomain,
            f"there is no Service {subdomain.text} among these objects: unless it exists already, "
            "the hosts' names do not resolve and JAX hangs",
            "add a Service of that name with clusterIP: None that selects the Job's Pods",
        )
        return
    spec = services[0].spec
    if spec["clusterIP"].value != "None":
        yield error(
            spec["clusterIP"],
            "is not None: only a headless Service gives each host of the slice a name, and JAX hangs without",
            "write clusterIP: None",
        )
    yield from _selector(job, spec["selector"])


def _selector(job: Job, selector: Node) -> Iterator[Problem]:
    labels = {key: node.value for key, node in job.pod.node.at("metadata", "labels").fields.items()}
    labels.update(dict.fromkeys(_JOB_LABELS, job.manifest.name))
    for key, node in selector.fields.items():
        if node.placeholder or key in _CONTROLLER_LABELS:
            continue
        if labels.get(key) != node.value:
            has = f"have {labels[key]!r}" if key in labels else "have no such label"
            yield error(
                node,
                f"selects {key}: {node.value}, but the Pods of Job {job.manifest.name} {has}: their names "
                "do not resolve, and JAX hangs",
                f"write {key}: {labels.get(key, '...')}, or label the Pods",
            )
    if not selector.fields:
        yield error(
            selector,
            "selects no Pods: the hosts' names do not resolve, and JAX hangs",
            f"write selector: {{job-name: {job.manifest.name}}}",
        )


@rule(Job, "job-slice", "Kubernetes: the scheduler knows no slices; GKE: a node pool is one")
def one_slice(job: Job) -> Iterator[Problem]:
    """Nothing but an affinity keeps the Pods of a Job on one slice where several are free."""
    spec = job.pod.spec
    exclusive = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    annotated = job.in_job_set and (
        job.manifest.metadata["annotations"][exclusive].present
        or job.node["metadata"]["annotations"][exclusive].present
        or any(
            entry.at("template", "metadata", "annotations", exclusive).present
            for entry in job.manifest.spec["replicatedJobs"]
        )
    )
    placed = any(
        key in spec["nodeSelector"].fields
        for key in ("cloud.google.com/gke-nodepool", "cloud.google.com/gke-tpu-slice", "kueue.x-k8s.io/topology")
    )
    if _hosts(job) == 1 or annotated or placed or spec["affinity"].present:
        return
    instead = (
        f"annotate {exclusive}: cloud.google.com/gke-nodepool"
        if job.in_job_set
        else "add a podAffinity to the Pods of this Job (label batch.kubernetes.io/job-name) with topologyKey "
        "cloud.google.com/gke-nodepool"
    )
    yield note(
        spec["affinity"],
        "nothing keeps the hosts together: where two slices of this topology are free, the scheduler may take hosts of "
        "both, and JAX hangs",
        instead,
    )


@rule(Job, "job-environment", "GKE sets TPU_WORKER_ID and TPU_WORKER_HOSTNAMES of Indexed Jobs")
def environment(job: Job) -> Iterator[Problem]:
    """A fixed TPU_WORKER_ID is the same on every host."""
    if _hosts(job) == 1:
        return
    for container in job.pod.tpu_containers:
        for item in container["env"]:
            if item["name"].value == "TPU_WORKER_ID" and item["value"].text:
                yield error(
                    item["value"],
                    "TPU_WORKER_ID is the same on every host of the slice: JAX hangs until it times out",
                    "take it out; GKE sets it from the Pod's index",
                )


@rule(Job, "job-slices", "GKE: TPU nodes are bought for Pods that ask for chips")
def replicated(job: Job) -> Iterator[Problem]:
    """A JobSet's replicas are slices; one that counts hosts there makes single-host Jobs of a multi-host slice."""
    replicas = job.node.document.node.at("spec", "replicatedJobs")
    if not job.in_job_set or _hosts(job) == 1:
        return
    for entry in replicas:
        parallelism = entry.at("template", "spec", "parallelism")
        count = entry["replicas"].number
        if entry["template"].path == job.node.path and count == _hosts(job) and (parallelism.number or 1) == 1:
            yield warning(
                entry["replicas"],
                f"replicas of a JobSet are whole slices, not hosts: this asks for {count} "
                f"slices with one Pod ({TPU}) each",
                f"write replicas: 1 and parallelism: {count}",
            )
