"""Jobs that end: on one host, on all hosts of a slice, and with a Ray cluster of their own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kuberay.render import render
from ray_configs.catalog.smoke_multi_host import job as multi_host
from ray_configs.catalog.smoke_single_host import job as single_host
from ray_configs.job import Job
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.harness.nodes import POOL, nodes_for
from tests.kubernetes.services.deploying import with_fields
from tests.kubernetes.services.waiting import SERVICE_S, until

Object = dict[str, Any]
SMOKE = ("python", "-m", "apps.jobs.smoke", "--platform", "cpu", "--expect")
pytestmark = pytest.mark.timeout(2 * SERVICE_S)


class Run:
    """A job that has been applied."""

    def __init__(self, cluster: Cluster, job: Job, kind: str):
        self._cluster, self.name, self.namespace, self._kind = cluster, job.name, job.namespace, kind

    def get(self, kind: str, *options: str) -> Any:
        return json.loads(self._cluster.kubectl("-n", self.namespace, "get", kind, "-o", "json", *options).stdout)

    @property
    def status(self) -> Object:
        return self.get(self._kind, self.name).get("status", {})

    @property
    def pods(self) -> list[Object]:
        return self.get("pods")["items"]

    def logs(self) -> str:
        names = [pod["metadata"]["name"] for pod in self.pods]
        return "".join(self._cluster.kubectl("-n", self.namespace, "logs", name, check=False).stdout for name in names)

    def wait(self, condition: str) -> None:
        """Complete or Failed."""

        def met() -> bool:
            conditions = {one["type"]: one["status"] for one in self.status.get("conditions", ())}
            return conditions.get(condition) == "True"

        try:
            until(f"{self.name} is {condition}", met, SERVICE_S, every_s=1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.status)}\n{self.logs()[-3000:]}") from None


@contextmanager
def applied(cluster: Cluster, namespace: str, job: Job, spare_slices: int = 0, **changes: Any) -> Iterator[Run]:
    job = with_fields(job, namespace=namespace, **changes)
    objects = json.loads(json.dumps(list(render(job)), default=str))
    nodes = nodes_for(objects, spare_slices) if cluster.plane is not None else []
    if nodes:
        cluster.kubectl("create", "-f", "-", input="\n".join(json.dumps(node) for node in nodes))
    try:
        text = "\n---\n".join(json.dumps(item) for item in objects)
        cluster.kubectl("apply", "--server-side", "-f", "-", input=text)
        yield Run(cluster, job, objects[-1]["kind"])
    finally:
        cluster.kubectl("-n", namespace, "delete", objects[-1]["kind"].lower(), job.name, "--wait=false", check=False)
        if nodes:
            cluster.kubectl("delete", "node", *(node["metadata"]["name"] for node in nodes))


def test_a_job_on_one_host_completes(cluster: Cluster, namespace: str) -> None:
    with applied(cluster, namespace, single_host, command=(*SMOKE, "4")) as run:
        run.wait("Complete")
        assert run.status["succeeded"] == 1


def test_a_job_that_fails_is_tried_again_and_then_given_up(cluster: Cluster, namespace: str) -> None:
    with applied(cluster, namespace, single_host, command=("false",), retries=1) as run:
        run.wait("Failed")
        assert run.status["conditions"][-1]["reason"] == "BackoffLimitExceeded"


def test_all_hosts_of_a_job_are_on_one_slice(cluster: Cluster, namespace: str) -> None:
    """Where two slices are free, it takes one, and its chips add up."""
    with applied(cluster, namespace, multi_host, spare_slices=1, command=(*SMOKE, "8")) as run:
        until("both hosts have their Nodes", lambda: len(run.pods) == 2 and all(_node(pod) for pod in run.pods))
        pools = {_pool(cluster, _node(pod)) for pod in run.pods}
        assert len(pools) == 1
        run.wait("Complete")
        assert run.status["succeeded"] == 2


def test_a_host_that_fails_ends_its_job(cluster: Cluster, namespace: str) -> None:
    script = 'test "$TPU_WORKER_ID" = 0 && exec sleep 600; exit 3'
    with applied(cluster, namespace, multi_host, command=("sh", "-c", script)) as run:
        run.wait("Failed")
        until("the other host is ended too", lambda: not run.status.get("active"), SERVICE_S)


@pytest.mark.long
@pytest.mark.parametrize(("command", "ends", "failed"), [("exit 0", "SUCCEEDED", 0), ("exit 3", "FAILED", 2)])
def test_a_ray_job(cluster: Cluster, namespace: str, command: str, ends: str, failed: int) -> None:
    """On a Ray cluster that goes with it, tried again on a new one."""
    driver = ("sh", "-c", f'python -c "import ray; ray.init(); print(ray.cluster_resources())"; {command}')
    job = Job(name="driver", command=driver, ray=True, retries=1, max_run_hours=1)
    with applied(cluster, namespace, job) as run:
        until(f"its status is {ends}", lambda: _is_over(run.status, ends), 2 * SERVICE_S, every_s=1)
        assert run.status.get("failed", 0) == failed
        until("its cluster is gone", lambda: run.get("rayclusters")["items"] == [], SERVICE_S, every_s=1)


def _is_over(status: Object, ends: str) -> bool:
    over = status.get("jobDeploymentStatus") in ("Complete", "Failed")
    assert not over or status.get("jobStatus") == ends, status
    return over


def _node(pod: Object) -> str | None:
    return pod["spec"].get("nodeName")


def _pool(cluster: Cluster, node: str | None) -> str:
    return json.loads(cluster.kubectl("get", "node", str(node), "-o", "json").stdout)["metadata"]["labels"][POOL]
