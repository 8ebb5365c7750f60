"""A service of toy models, deployed to a cluster as its manifest says, with the Nodes that it needs."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from kuberay import cluster as client
from kuberay.local.scaling_down import scale_down
from kuberay.render import render
from ray_configs.service import Service
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.harness.nodes import nodes_for
from tests.kubernetes.services.waiting import SERVICE_S, until

Object = dict[str, Any]
SERVE_PORT = "serve"


def with_fields(model: Any, **changes: Any) -> Any:
    """The same config with some fields changed, validated again."""
    return type(model)(**({name: getattr(model, name) for name in model.model_fields_set} | changes))


def manifest_of(service: Service, hosts_per_slice: int = 2, tiny: bool = True) -> list[Object]:
    """Rendered with toy models on slices of no more hosts than that. `tiny` False: its models are toys already."""
    scaled = scale_down(service, tiny=tiny, hosts_per_slice=hosts_per_slice).service
    return json.loads(json.dumps(list(render(scaled)), default=str))


@dataclass(frozen=True)
class Deployed:
    """A RayService on a cluster."""

    cluster: Cluster
    name: str
    namespace: str
    objects: list[Object]

    def kubectl(self, *arguments: str, **options: Any) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, **options).stdout

    def items(self, kind: str, *options: str) -> list[Object]:
        return json.loads(self.kubectl("get", kind, "-o", "json", *options))["items"]

    @property
    def url(self) -> str:
        """Of its serve Service, which there is once it is Ready."""
        return self.cluster.service_url(f"{self.name}-serve-svc", SERVE_PORT, self.namespace)

    @property
    def endpoints(self) -> list[str]:
        """Addresses of all that are Ready behind the serve Service."""
        slices = self.items("endpointslices", "-l", f"kubernetes.io/service-name={self.name}-serve-svc")
        ends = (end for piece in slices for end in piece.get("endpoints") or () if end["conditions"].get("ready"))
        return [address for end in ends for address in end["addresses"]]

    @property
    def pods(self) -> list[Object]:
        """All that are not about to go."""
        pods = self.items("pods", "-l", "ray.io/cluster")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    @property
    def head(self) -> str:
        return next(pod["metadata"]["name"] for pod in self.pods if _label(pod, "node-type") == "head")

    @property
    def slices(self) -> dict[str, list[Object]]:
        """Pods of each slice, by its TPU_NAME."""
        found: dict[str, list[Object]] = {}
        for pod in self.pods:
            env = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0].get("env", ())}
            if "TPU_NAME" in env:
                found.setdefault(env["TPU_NAME"], []).append(pod)
        return found

    @property
    def status(self) -> str:
        """What `python -m kuberay status` says of it."""
        connected = client.Cluster.connect(None, self.namespace, str(self.cluster.kubeconfig))
        return "\n".join(client.describe(client.observe(connected, self.objects)))

    def is_ready(self) -> bool:
        status = self.items("rayservice")[0].get("status", {})
        return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))

    def wait_until_ready(self) -> None:
        self._until("the service is Ready", self.is_ready)

    def application(self, name: str) -> Object:
        """What Serve on the head says of it; empty where it cannot be asked."""
        ask = ("exec", self.head, "-c", "ray-head", "--", "serve", "status")
        said = self.cluster.kubectl("-n", self.namespace, *ask, check=False)
        status = yaml.safe_load(said.stdout) if said.returncode == 0 else {}
        return (status or {}).get("applications", {}).get(name) or {}

    def running_replicas(self, application: str) -> int:
        """0 where Serve cannot be asked. Routers do not count."""
        deployments = self.application(application).get("deployments", {})
        models = (each for name, each in deployments.items() if name != "LLMRouter")
        return sum(each.get("replica_states", {}).get("RUNNING", 0) for each in models)

    def wait_for_replicas(self, count: int, application: str = "llm") -> None:
        self._until(f"{count} replicas of {application} run", lambda: self._replicas_are(count, application), every_s=5)

    def _replicas_are(self, count: int, application: str) -> bool:
        try:
            return self.running_replicas(application) == count
        except StopIteration:  # no head
            return False

    def _until(self, said: str, what: Any, every_s: float = 1) -> None:
        try:
            until(said, what, SERVICE_S, every_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.account()}") from None

    def account(self) -> str:
        """What somebody would look at first."""
        return "\n".join(
            self.cluster.kubectl("-n", self.namespace, *arguments, check=False).stdout[-6000:]
            for arguments in (
                ("get", "pods", "-o", "wide"),
                ("get", "rayservice", self.name, "-o", "jsonpath={.status}"),
                ("get", "events", "--field-selector=type=Warning", "--sort-by=.lastTimestamp"),
            )
        )


@contextmanager
def nodes_of(cluster: Cluster, objects: list[Object]) -> Iterator[None]:
    """The Nodes that the objects need, where the cluster is the harness's own. Another has node pools."""
    if cluster.plane is None:
        yield
        return
    nodes = nodes_for(objects)
    cluster.kubectl("create", "-f", "-", input="\n".join(json.dumps(node) for node in nodes))
    try:
        yield
    finally:
        cluster.kubectl("delete", "node", "--ignore-not-found", *(node["metadata"]["name"] for node in nodes))


@contextmanager
def deployed(
    cluster: Cluster,
    service: Service,
    hosts_per_slice: int = 2,
    before: Sequence[Object] = (),
    change: Callable[[list[Object]], None] = lambda objects: None,
    tiny: bool = True,
) -> Iterator[Deployed]:
    """Applied with its Nodes, after what must be there before, and changed if asked to; nothing is waited for.

    In the end it is deleted, and must leave no Pod behind.
    """
    objects = manifest_of(service, hosts_per_slice, tiny)
    change(objects)
    name, namespace = service.name, service.namespace
    with nodes_of(cluster, objects):
        cluster.kubectl("create", "namespace", namespace)
        text = "\n---\n".join(json.dumps(item) for item in (*before, *objects))
        cluster.kubectl("apply", "--server-side", "-f", "-", input=text)
        running = Deployed(cluster, name, namespace, objects)
        yield running
        cluster.kubectl("-n", namespace, "delete", "rayservice", name, "--wait=false", "--ignore-not-found")
        running._until("all its Pods are told to end", lambda: not running.pods)
        # Nobody asks any more: the minutes that they may take to finish would be a test's for nothing.
        cluster.kubectl("-n", namespace, "delete", "pods", "-l", "ray.io/cluster", "--grace-period=1", "--wait=false")
        running._until("all its Pods are gone", lambda: not running.items("pods", "-l", "ray.io/cluster"))
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@contextmanager
def port_forward(running: Deployed, what: str, port: int) -> Iterator[str]:
    """`kubectl port-forward`: the address here."""
    process = running.cluster.start_kubectl("-n", running.namespace, "port-forward", what, f":{port}")
    try:
        line = process.stdout.readline()
        match = re.search(r"127.0.0.1:(\d+) ->", line)
        assert match, line or process.communicate()[1]
        yield f"http://127.0.0.1:{match[1]}"
    finally:
        process.kill()
        process.communicate()


def harness_only(cluster: Cluster) -> None:
    """Skip: only on Nodes of our own can one be switched off."""
    if cluster.plane is None:
        pytest.skip("a fault that only the harness can make")


def _label(pod: Object, name: str) -> str | None:
    return pod["metadata"]["labels"].get(f"ray.io/{name}")
