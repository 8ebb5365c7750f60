"""Jobs, and what waits in a Kueue queue."""

from typing import Any

import pytest
from pydantic import ValidationError

from kuberay.render import render, to_yaml
from ray_configs.capacity import FlexStart, Queued
from ray_configs.job import Job
from tests.kuberay.render.rendered import of_kind, service


def test_a_queued_service_brings_its_queue() -> None:
    config = service(capacity=Queued(queue="night", max_run_hours=2), replicas=(2, 2))
    (ray_service,) = of_kind(config, "RayService")
    assert ray_service["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "night"
    annotations = ray_service["metadata"]["annotations"]
    assert annotations["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] == "7200"
    (local,) = of_kind(config, "LocalQueue")
    (queue,) = of_kind(config, "ClusterQueue")
    (check,) = of_kind(config, "AdmissionCheck")
    (request,) = of_kind(config, "ProvisioningRequestConfig")
    flavors = {flavor["metadata"]["name"] for flavor in of_kind(config, "ResourceFlavor")}
    assert local["metadata"]["name"] == "night" and local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    (group,) = queue["spec"]["resourceGroups"]
    assert {flavor["name"] for flavor in group["flavors"]} == flavors
    (used,) = queue["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert used["name"] == check["metadata"]["name"] and set(used["onFlavors"]) < flavors
    assert check["spec"]["parameters"]["name"] == request["metadata"]["name"]
    assert request["spec"]["provisioningClassName"] == "queued-provisioning.gke.io"
    kinds = [item["kind"] for item in render(config)]
    assert kinds.index("LocalQueue") < kinds.index("RayService")


def test_a_queued_service_says_which_kueue_starts_it() -> None:
    (written,) = [
        text for text in to_yaml(render(service(capacity=Queued(), replicas=(1, 1)))).split("---") if "RayS" in text
    ]
    before = " ".join(line.strip("# ") for line in written.partition("kueue.x-k8s.io/queue-name")[0].splitlines()[-5:])
    assert "Needs Kueue 0.16.9 or older" in before and "kueue#11264" in before and "1.6.2" in before


def test_a_queued_service_of_changing_size_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_replicas equal to min_replicas in every application"):
        service(capacity=Queued(), replicas=(1, 2))
    assert service(capacity=FlexStart(), replicas=(1, 2)).elastic


def test_a_queue_that_exists_is_not_made_again() -> None:
    kinds = {item["kind"] for item in render(service(capacity=Queued(create_queue=False), replicas=(1, 1)))}
    assert kinds == {"RayService", "PodMonitoring"}


def test_two_configs_render_the_same_queue() -> None:
    queued = Queued(queue="shared")
    job = Job(name="job", command=("true",), slice="v6e:2x2", capacity=queued)
    kueue = [
        [o for o in render(c) if "kueue" in o["apiVersion"]] for c in (service(capacity=queued, replicas=(1, 1)), job)
    ]
    assert kueue[0] == kueue[1] and kueue[0]


def test_hosts_of_an_indexed_job_share_one_slice_and_share_it_with_nobody() -> None:
    (job,) = of_kind(Job(name="work", command=("true",), slice="v5e:4x4"), "Job")
    affinity = job["spec"]["template"]["spec"]["affinity"]
    (together,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    apart = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert {term["topologyKey"] for term in (together, *apart)} == {"cloud.google.com/gke-nodepool"}
    assert together["labelSelector"] == {"matchLabels": {"batch.kubernetes.io/job-name": "work"}}

    def refuses(labels: dict[str, str]) -> bool:
        def met(expression: dict[str, Any]) -> bool:
            there = expression["key"] in labels
            return (
                there
                if expression["operator"] == "Exists"
                else labels.get(expression["key"]) not in expression["values"]
            )

        return any(all(met(e) for e in term["labelSelector"]["matchExpressions"]) for term in apart)

    assert not refuses({"batch.kubernetes.io/job-name": "work"})
    assert refuses({"batch.kubernetes.io/job-name": "other"}) and refuses({"ray.io/cluster": "any"})
    assert not refuses({"app": "a daemon"})
    (single,) = of_kind(Job(name="work", command=("true",), slice="v5e:2x2"), "Job")
    assert "affinity" not in single["spec"]["template"]["spec"]


def test_a_ray_job_goes_when_it_is_done() -> None:
    job = Job(name="job", command=("python", "-c", "print('a b')"), slice="v4:2x2x2", slices=3, ray=True, retries=2)
    (ray_job,) = of_kind(job, "RayJob")
    spec = ray_job["spec"]
    assert spec["entrypoint"] == """python -c 'print('"'"'a b'"'"')'"""
    assert spec["shutdownAfterJobFinishes"] is True and spec["backoffLimit"] == 2
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["numOfHosts"]) == (3, 2)
    assert "readinessProbe" not in group["template"]["spec"]["containers"][0], "there is no Serve proxy to wait for"


def test_time_for_a_job_does_not_run_while_it_waits_for_machines() -> None:
    flexible = {"slice": "v6e:2x2", "capacity": FlexStart(), "command": ("true",), "max_run_hours": 0.5}
    (job,) = of_kind(Job(name="job", **flexible), "Job")
    assert "activeDeadlineSeconds" not in job["spec"]
    assert job["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 1800
    (ray_job,) = of_kind(Job(name="job", ray=True, **flexible), "RayJob")
    assert "activeDeadlineSeconds" not in ray_job["spec"]
