"""The tests' own kubelet and network, with Pods that are small shell scripts."""

import json
import re
import secrets
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.kubernetes.clusters import Cluster
from tests.kubernetes.harness.nodes import node
from tests.kubernetes.services.waiting import PATIENCE_S, until


class Pods:
    """A namespace with Pods in it."""

    def __init__(self, cluster: Cluster, namespace: str):
        self.cluster, self.namespace = cluster, namespace

    def kubectl(self, *arguments: str, **options: Any) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, **options).stdout

    def says(self, *arguments: str) -> str:
        """What kubectl says, be it an error."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, check=False).stdout

    def apply(self, kind: str, name: str, api: str = "v1", **fields: Any) -> None:
        metadata = {"name": name, "labels": fields.pop("labels", {})}
        item = {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}
        self.kubectl("apply", "-f", "-", input=json.dumps(item))

    def start(self, name: str, script: str, container: dict[str, Any] | None = None, **spec: Any) -> None:
        labels = {"app": name} | spec.pop("labels", {})
        first = {"name": "main", "image": "none", "command": ["sh", "-c", script]} | (container or {})
        spec = {"nodeName": "kubelet-test", "restartPolicy": "Never", "containers": [first]} | spec
        self.apply("Pod", name, labels=labels, spec=spec)

    def get(self, name: str, kind: str = "pod") -> dict[str, Any]:
        return json.loads(self.kubectl("get", kind, name, "-o", "json"))

    def status(self, name: str) -> dict[str, Any]:
        return self.get(name)["status"]

    def wait(self, name: str, phase: str) -> None:
        until(f"{name} is {phase}", lambda: self.status(name).get("phase") == phase)

    def first(self, name: str) -> dict[str, Any]:
        return (self.status(name).get("containerStatuses") or [{}])[0]

    def output(self, name: str, *options: str) -> str:
        self.wait(name, "Succeeded")
        return self.kubectl("logs", name, *options)

    def is_there(self, name: str) -> bool:
        return self.cluster.kubectl("-n", self.namespace, "get", "pod", name, check=False).returncode == 0


@pytest.fixture(scope="module")
def pods(cluster: Cluster) -> Iterator[Pods]:
    if cluster.plane is None:
        pytest.skip("these tests are of the harness")
    room = Pods(cluster, f"test-{secrets.token_hex(4)}")
    make_node(cluster, "kubelet-test")
    cluster.kubectl("create", "namespace", room.namespace)
    until("the default service account", lambda: "default" in room.kubectl("get", "serviceaccounts", "-o", "name"))
    yield room
    cluster.kubectl("delete", "namespace", room.namespace, "--wait=false")
    cluster.kubectl("delete", "node", "kubelet-test")


def make_node(cluster: Cluster, name: str, labels: dict[str, str] | None = None, **amounts: str) -> None:
    cluster.kubectl("create", "-f", "-", input=json.dumps(node(name, labels, **amounts)))


@pytest.fixture
def file_of_the_machine() -> Iterator[str]:
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        yield file.name


def test_a_container_gets_what_its_pod_says(pods: Pods, file_of_the_machine: str) -> None:
    pods.apply("ConfigMap", "words", data={"greeting": "hello"})
    pods.apply("Secret", "hidden", stringData={"key": "s3cret"})
    pods.start(
        "env",
        'echo "$NODE $POD $LABEL $IP $CPUS $MEMORY $ALL [$NONE] $key"; cat /shared/word /words/first; '
        "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; "
        "test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo token; "
        f"test -e {file_of_the_machine} || echo own files; "
        "df --output=size --block-size=1M /dev/shm | tail -1 | tr -d ' '; hostname; "
        "touch /words/new 2>/dev/null || echo read-only; echo $$$$; getent hosts env | cut -d' ' -f1",
        container={
            "env": [
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
                {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "greeting"}}},
                {"name": "ALL", "value": "$(GREETING)-$(POD)-$(NOBODY)-$$(POD)"},
                {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "no", "key": "no", "optional": True}}},
            ],
            "envFrom": [{"secretRef": {"name": "hidden"}}],
            "resources": {"limits": {"cpu": "1500m", "memory": "64M"}},
            "volumeMounts": [
                {"name": "shared", "mountPath": "/shared"},
                {"name": "words", "mountPath": "/words", "readOnly": True},
                {"name": "memory", "mountPath": "/dev/shm"},
            ],
        },
        initContainers=[
            {
                "name": name,
                "image": "none",
                "command": ["sh", "-c", f"echo {name} >> /shared/word"],
                "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
            }
            for name in ("one", "two")
        ],
        volumes=[
            {"name": "shared", "emptyDir": {}},
            {"name": "words", "configMap": {"name": "words", "items": [{"key": "greeting", "path": "first"}]}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        ],
    )
    ip = pods.status("env")["podIP"]
    assert pods.output("env").splitlines() == [
        f"kubelet-test env env {ip} 2 64000000 hello-env-$(NOBODY)-$(POD) [] s3cret",
        *("one", "two", f"hello{pods.namespace}", "token", "own files", "16", "env", "read-only", "1", ip),
    ]


def test_a_pod_waits_for_its_secret(pods: Pods) -> None:
    entry = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "later", "key": "key"}}}
    pods.start("patient", "echo got $KEY", container={"env": [entry]})
    waiting = until("it waits", lambda: pods.first("patient").get("state", {}).get("waiting", {}).get("message"))
    assert pods.first("patient")["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    assert waiting == 'secret "later" not found'
    pods.apply("Secret", "later", stringData={"key": "at last"})
    assert pods.output("patient") == "got at last\n"


def test_restart_policies(pods: Pods) -> None:
    volume = {"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]}
    kept = [{"name": "kept", "emptyDir": {}}]
    script = "echo run >> /kept/runs; test $(wc -l < /kept/runs) -ge 2 || exit 3; cat /kept/runs"
    pods.start("again", script, volume, restartPolicy="OnFailure", volumes=kept)
    pods.start("never", "exit 3")
    bad = {"name": "bad", "image": "none", "command": ["false"]}
    pods.start("unprepared", "echo never", initContainers=[bad])
    pods.start("nowhere", "true", container={"image": "registry.invalid/none"})
    assert pods.output("again") == "run\nrun\n"
    assert pods.first("again")["restartCount"] == 1
    pods.wait("never", "Failed")
    assert pods.first("never")["state"]["terminated"]["exitCode"] == 3
    pods.wait("unprepared", "Failed")
    assert pods.first("nowhere")["state"]["waiting"]["reason"] == "ImagePullBackOff"


def test_probes_restart_a_container_and_keep_it_out_of_its_service(pods: Pods) -> None:
    script = (
        "mkdir /www; touch /www/live /www/index.html; cd /www; python -m http.server 8080 & "
        "sleep 3; touch /www/started; wait"
    )
    period = {"periodSeconds": 1, "failureThreshold": 2}
    pods.start(
        "probed",
        script,
        container={
            "ports": [{"name": "web", "containerPort": 8080}],
            "startupProbe": {"exec": {"command": ["test", "-e", "/www/started"]}, **period, "failureThreshold": 60},
            "livenessProbe": {"exec": {"command": ["test", "-e", "/www/live"]}, **period},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "web"}, **period},
        },
        restartPolicy="Always",
        terminationGracePeriodSeconds=1,
    )
    ports = [{"name": "web", "port": 80, "targetPort": 8080}, {"name": "none", "port": 81, "targetPort": 8081}]
    pods.apply("Service", "probed", spec={"selector": {"app": "probed"}, "ports": ports})
    url = pods.cluster.service_url("probed", "web", pods.namespace)
    until("it has started", lambda: pods.first("probed").get("started"))
    with pytest.raises(httpx.TransportError):
        httpx.get(url)  # not ready: no endpoint
    pods.kubectl("exec", "probed", "--", "touch", "/www/ready")
    until("it is ready", lambda: pods.first("probed")["ready"])
    until("its Service answers", lambda: _status(url) == 200)
    assert _status(pods.cluster.service_url("probed", "none", pods.namespace)) is None  # nothing listens there
    asked = f"http://probed http://probed.{pods.namespace}.svc.cluster.local"
    pods.start(
        "client", f"for url in {asked}; do wget -qO /dev/null $url && echo answered; done; wget -qT2 http://no.com"
    )
    pods.wait("client", "Failed")
    assert pods.kubectl("logs", "client").split() == ["answered", "answered"]
    pods.kubectl("exec", "probed", "--", "rm", "/www/live")
    until("it is restarted", lambda: pods.first("probed")["restartCount"] == 1)
    until("it runs again", lambda: pods.first("probed").get("started"))
    assert not pods.first("probed")["ready"]  # its files are new
    assert pods.first("probed")["lastState"]["terminated"]["exitCode"] in (137, 143)
    events = json.loads(pods.kubectl("get", "events", "-o", "json", "--field-selector=involvedObject.name=probed"))
    assert "Unhealthy" in {event["reason"] for event in events["items"]}
    assert pods.kubectl("logs", "--previous", "probed") != ""


def _status(url: str) -> int | None:
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return None


def test_kubectl_logs_exec_and_port_forward(pods: Pods) -> None:
    script = (
        "mkdir /www; echo page > /www/index.html; echo first; sleep 1; echo second; cd /www; python -m http.server 80"
    )
    pods.start("shell", script, container={"env": [{"name": "WORD", "value": "given"}]})
    pods.wait("shell", "Running")
    until("it has said both", lambda: pods.kubectl("logs", "shell").endswith("second\n"))
    assert pods.kubectl("logs", "--tail=1", "shell") == "second\n"
    assert pods.kubectl("exec", "shell", "--", "sh", "-c", "echo $WORD; cat /www/index.html") == "given\npage\n"
    assert pods.kubectl("exec", "-i", "shell", "--", "tr", "a-z", "A-Z", input="loud") == "LOUD"
    failed = pods.cluster.kubectl("-n", pods.namespace, "exec", "shell", "--", "sh", "-c", "exit 7", check=False)
    assert failed.returncode == 7
    until("it serves", lambda: pods.says("exec", "shell", "--", "wget", "-qO-", "localhost") == "page\n")
    forward = pods.cluster.start_kubectl("-n", pods.namespace, "port-forward", "pod/shell", ":80", ":81")
    try:
        ports: dict[str, int] = {}
        while len(ports) < 2:
            if match := re.search(r"127.0.0.1:(\d+) -> (\d+)", forward.stdout.readline()):
                ports[match[2]] = int(match[1])
        assert [httpx.get(f"http://127.0.0.1:{ports['80']}").text for _ in range(5)] == ["page\n"] * 5
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{ports['81']}")
        assert "cannot connect to port 81" in forward.communicate(timeout=PATIENCE_S)[1]  # and kubectl gives up
    finally:
        forward.kill()


def test_grace_periods(pods: Pods) -> None:
    polite = "trap 'sleep 2; echo bye > /dev/tcp/$SINK; exit 0' TERM; echo up; while true; do sleep 0.1; done"
    with socket.create_server(("", 0)) as sink:
        entry = {"name": "SINK", "value": f"10.201.0.1/{sink.getsockname()[1]}"}
        pods.start("polite", "", {"command": ["bash", "-c", polite], "env": [entry]}, terminationGracePeriodSeconds=60)
        pods.start("deaf", "trap '' TERM; echo up; while true; do sleep 1; done", terminationGracePeriodSeconds=2)
        for name in ("polite", "deaf"):
            until(f"{name} is up", lambda name=name: pods.says("logs", name) == "up\n")
        pods.kubectl("delete", "pod", "deaf", "polite", "--wait=true")
        sink.settimeout(PATIENCE_S)
        assert sink.accept()[0].recv(10) == b"bye\n"
    assert not pods.is_there("polite")
    assert not pods.is_there("deaf")


def test_a_node_takes_its_pods_with_it(pods: Pods) -> None:
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
        "cloud.google.com/gke-nodepool": "pool",
    }
    make_node(pods.cluster, "tpu-0", labels, **{"google.com/tpu": "4"})
    say = (
        "echo $TPU_TOPOLOGY $TPU_ACCELERATOR_TYPE $TPU_WORKER_ID $TPU_WORKER_HOSTNAMES $XLA_FLAGS; exec sleep infinity"
    )
    container = {
        "name": "main", "image": "none", "command": ["sh", "-c", say],
        "resources": {"limits": {"google.com/tpu": "2", "cpu": "1"}},
    }  # fmt: skip
    template = {"spec": {"restartPolicy": "Never", "subdomain": "slice", "containers": [container]}}
    template["spec"]["nodeSelector"] = {"cloud.google.com/gke-tpu-topology": "2x4"}
    spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    pods.apply("Job", "slice", api="batch/v1", spec=spec)
    selector = "-lbatch.kubernetes.io/job-name=slice"
    names = until("both run", lambda: _running(pods, selector, 2))
    said = sorted(until(f"{name} speaks", lambda name=name: pods.kubectl("logs", name)) for name in names)
    hosts = "slice-0.slice,slice-1.slice,slice-2.slice,slice-3.slice"
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=2"
    assert said == [f"2x4 v5litepod-8 {index} {hosts} {flags}\n" for index in (0, 1)]
    pods.cluster.kubectl("delete", "node", "tpu-0")
    until("they are gone", lambda: pods.kubectl("get", "pods", selector, "-o", "name").split() == [], 240)
    until("the Job has failed", lambda: pods.get("slice", "job")["status"].get("failed"))


def test_a_machine_that_returns_starts_its_pods_again(pods: Pods) -> None:
    make_node(pods.cluster, "again-0")
    pods.start("again-pod", "echo up; exec sleep infinity", nodeName="again-0", restartPolicy="Always")
    until("it is up", lambda: pods.says("logs", "again-pod") == "up\n")
    pods.cluster.kubectl("delete", "node", "again-0")
    make_node(pods.cluster, "again-0")
    until("it is up again", lambda: pods.says("logs", "again-pod").splitlines().count("up") == 2)
    assert pods.status("again-pod")["phase"] == "Running"
    pods.cluster.kubectl("delete", "node", "again-0")


def _running(pods: Pods, selector: str, count: int) -> list[str] | None:
    items = json.loads(pods.kubectl("get", "pods", selector, "-o", "json"))["items"]
    names = [item["metadata"]["name"] for item in items if item["status"]["phase"] == "Running"]
    return names if len(names) == count else None
