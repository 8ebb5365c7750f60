"""Keeps a cluster running until Ctrl-C, with one config's service or job on it, for looking around."""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kuberay.local import LocalError
from kuberay.local.scaling_down import scale_down
from kuberay.render import render
from kuberay.source import Placeholders
from ray_configs.loading import ConfigError, load
from ray_configs.service import Service
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.harness.kubelet.process import KubeletProcess
from tests.kubernetes.harness.namespace import MARK
from tests.kubernetes.harness.nodes import nodes_for
from tests.kubernetes.harness.plane import ControlPlane

LOOK_S = 3


def stay(config: str, hosts_per_slice: int | None) -> int:
    """Runs until SIGINT, then stops everything and deletes its folder. Models are tiny random ones of the same shape.

    config: module or file, as `python -m kuberay render` takes it.
    """
    try:
        item = load(config)
        if isinstance(item, Service):
            scaled = scale_down(item, tiny=True, hosts_per_slice=hosts_per_slice)
            item = scaled.service
            for line in scaled.said:
                say(line)
    except (ConfigError, LocalError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    objects = Placeholders(project="some-project", bucket="some-bucket").fill(render(item))
    with tempfile.TemporaryDirectory(prefix="podslice-kubernetes-") as folder:
        try:
            with ControlPlane(Path(folder, "plane")) as plane, KubeletProcess(plane.kubeconfig, Path(folder, "pods")):
                apply(plane.cluster, nodes_for(objects))
                apply(plane.cluster, objects)
                into = f"nsenter --target {os.environ[MARK]} --net"
                say(f"the cluster is up and {item.name} is applied; Ctrl-C ends it. To look, as root:")
                print(f"{into} {plane.kubectl} --kubeconfig={plane.kubeconfig} get pods", flush=True)
                follow(plane.cluster, item.name, into, plane.alive)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            say("ended")
    return 0


def say(line: str) -> None:
    print(f"== {line}", flush=True)


def apply(cluster: Cluster, objects: list) -> None:
    text = "\n".join(json.dumps(item) for item in objects)
    cluster.kubectl("apply", "--server-side", "-f", "-", input=text)


def follow(cluster: Cluster, name: str, into: str, alive: Callable[[], None]) -> None:
    """Prints what changes: how many Pods run, and where the service answers. Never returns."""
    began, said = time.monotonic(), None
    while True:
        alive()
        pods = json.loads(cluster.kubectl("get", "pods", "-o", "json").stdout)["items"]
        running = sum(pod["status"].get("phase") == "Running" for pod in pods)
        state = f"{running} of {len(pods)} Pods run"
        if serves(cluster, name):
            url = cluster.service_url(f"{name}-serve-svc", "serve")
            state += f", and the service is Ready: {into} curl -s {url}/-/routes"
        if state != said:
            say(f"{time.monotonic() - began:.0f} s: {state}")
            said = state
        time.sleep(LOOK_S)


def serves(cluster: Cluster, name: str) -> bool:
    path = """-o=jsonpath={.status.conditions[?(@.type=="Ready")].status}"""
    return cluster.kubectl("get", "rayservice", name, path, check=False).stdout == "True"


if __name__ == "__main__":
    sys.exit(stay(sys.argv[1], int(sys.argv[2]) or None))
