"""A Ray cluster of pretended TPU slices, in a process of its own: python emulation.py SLICES HOSTS CHIPS

Every host of a slice is a raylet, with the environment that GKE gives it and JAX's CPU devices for chips. Takes one
JSON order a line, [command, arguments], on stdin, and answers with one line of JSON. Ends with its stdin.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from ray.util.placement_group import placement_group_table

from apps.llm import build
from apps.llm.slice_reservation import slices
from apps.serving.ingress.direct_ingress import prefer_direct_ingress
from apps.serving.private_ray import start_serve
from ray_configs.cluster.labels import TPU_SLICE_NAME, TPU_WORKER_ID
from ray_configs.llm import LLMConfig
from ray_configs.tpu import TpuSlice
from tests.ports import free_port, serve_ports

TOPOLOGIES = {2: "2x4", 4: "4x4", 8: "4x8"}  # v5e, by hosts


@contextlib.contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Emulation:
    def __init__(self, count: int, hosts: int, devices: int):
        self.kind = TpuSlice("v5e", TOPOLOGIES[hosts], "4t" if hosts == 2 else None)
        # Beside another Serve of this machine. HAProxy and the replicas' own servers, as `serve run` would have them.
        os.environ |= serve_ports()
        prefer_direct_ingress()
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100 * 2**20},
        )
        for index in range(count):
            for worker in range(hosts):
                self.add_host(f"tpu-group-{index}", worker, devices)
        ray.init(address=self.cluster.address, log_to_driver=False, namespace="serve")

    def add_host(self, name: str, worker: int, devices: int) -> None:
        # Ray reads these in this process; the raylet and its workers inherit them.
        gke = {
            "TPU_NAME": name,
            "TPU_WORKER_ID": str(worker),
            "TPU_TOPOLOGY": self.kind.topology,
            "TPU_ACCELERATOR_TYPE": self.kind.ray_pod_type,
            "TPU_WORKER_HOSTNAMES": ",".join(["127.0.0.1"] * self.kind.hosts),
            "JAX_PLATFORMS": "cpu",
            # Compiled quickly: how fast these steps are is nobody's matter.
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
        }
        with environment(gke):
            resources = {"TPU": self.kind.chips_per_host}
            self.cluster.add_node(num_cpus=1, resources=resources, object_store_memory=80 * 2**20)

    # -- orders -------------------------------------------------------------------------------------------------

    def address(self) -> str:
        return self.cluster.address

    def state(self) -> dict[str, Any]:
        """Everything that could leak."""
        now = slices(self.kind)
        groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        actors = [actor for actor in ray._private.state.actors().values() if actor["State"] in ("ALIVE", "PENDING")]
        names = [actor["ActorClassName"] for actor in actors]
        labels = {node["NodeID"]: node["Labels"] for node in ray.nodes()}
        replicas = [actor for actor in actors if actor["ActorClassName"].startswith("ServeReplica")]
        homes = [labels.get(actor["Address"]["NodeID"], {}) for actor in replicas]
        return {
            "free": len(now.free),
            "busy": len(now.busy),
            "groups": sorted(group["state"] for group in groups),
            "hosts": names.count("SliceHost"),
            "replicas": len(replicas),
            "replica_homes": sorted(f"{home.get(TPU_SLICE_NAME)}/{home.get(TPU_WORKER_ID)}" for home in homes),
            "pids": [actor["Pid"] for actor in actors if actor["ActorClassName"] == "SliceHost"],
            "replica_pids": [actor["Pid"] for actor in replicas],
        }

    def drain_host(self, name: str, worker: int, seconds: float) -> None:
        """What `ray start --block` does when its Pod is told to stop: the node goes, and has so much time to end."""
        wanted = {TPU_SLICE_NAME: name, TPU_WORKER_ID: str(worker)}
        (node,) = [n["NodeID"] for n in ray.nodes() if n["Alive"] and wanted.items() <= n["Labels"].items()]
        deadline_ms = int((time.time() + seconds) * 1000)
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        accepted, why = ray._private.worker.global_worker.gcs_client.drain_node(node, reason, "test", deadline_ms)
        assert accepted, why

    def serve(self) -> str:
        """Serve's URL. One proxy: all hosts are this machine, and a port is there only once."""
        port = free_port()
        start_serve(proxy_location="HeadOnly", http_options={"port": port})
        return f"http://127.0.0.1:{port}"

    def deploy(self, config: dict[str, Any]) -> None:
        serve.run(build(LLMConfig(**({"slice": str(self.kind)} | config))), name="llm")

    def status(self) -> dict[str, Any]:
        """Serve's view: replicas by state."""
        app = serve.status().applications.get("llm")
        if app is None or "LLMServer" not in app.deployments:
            return {"status": "none", "replicas": {}}
        return {"status": app.status, "replicas": dict(app.deployments["LLMServer"].replica_states)}

    def undeploy(self) -> None:
        serve.delete("llm")


def main() -> None:
    # What Ray and JAX print must not come between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    emulation = Emulation(*map(int, sys.argv[1:]))
    try:
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            command, *arguments = json.loads(line)
            try:
                answer = {"value": getattr(emulation, command)(*arguments)}
            except Exception as error:
                answer = {"error": repr(error)}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        ray.shutdown()
        emulation.cluster.shutdown()


if __name__ == "__main__":
    main()
