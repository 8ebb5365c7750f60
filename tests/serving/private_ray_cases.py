"""Each use of Ray's private API against the Ray that is installed, the one that pyproject.toml's bound allows.

Run by test_private_ray.py.
"""

import inspect
import json
import logging
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from packaging.requirements import Requirement
from packaging.version import Version
from ray import serve
from ray.serve.schema import LoggingConfig, ProxyStatus
from ray.util.placement_group import placement_group, placement_group_table

from apps.serving import private_ray
from apps.serving.ingress.direct_ingress import PRIORITY
from apps.serving.machines import notices
from apps.serving.machines.leaving import LeavingNodes
from apps.serving.replica import log_as_serve_does
from tests.http_servers import StandInHandler, StandInServer
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PORT = free_port()


@serve.deployment
class Echo:
    def __call__(self) -> str:
        return "here"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    os.environ |= PRIORITY
    ray.init(
        address="local",
        num_cpus=2,
        resources={"TPU": 4},
        labels={"kind": "test"},
        include_dashboard=False,
        log_to_driver=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray.serve._private.api, "HTTP_PROXY_TIMEOUT", 0.01)  # as on a machine that is too busy
        private_ray.start_serve(http_options={"host": "127.0.0.1", "port": PORT})
    yield
    serve.shutdown()
    ray.shutdown()


def test_the_bound_is_the_version_that_these_tests_run_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    every = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    bounds = [Requirement(one).specifier for one in every if Requirement(one).name == "ray"]
    major, minor = Version(ray.__version__).release[:2]
    assert len(bounds) == 2  # serve, data
    for bound in bounds:
        assert bound.contains(ray.__version__) and bound.contains(f"{major}.{minor}.99")
        assert not bound.contains(f"{major}.{minor + 1}.0")


def test_nodes() -> None:
    (node,) = private_ray.nodes()
    assert node.id == ray.get_runtime_context().get_node_id()
    assert node.alive and not node.given_back and node.tpus == 4 and node.labels["kind"] == "test"
    assert 0 <= time.time() - node.began < 600


def test_draining_nodes() -> None:
    assert private_ray.draining_nodes() == set()


class Metadata(StandInHandler):
    """Compute Engine's metadata server, by its documents: it asks for a header, and says TRUE and FALSE in capitals."""

    def do_GET(self) -> None:
        assert self.headers["Metadata-Flavor"] == "Google"
        known = {f"/computeMetadata/v1/instance/{entry}": said for entry, said in self.server.says.items()}
        self.answer(known.get(self.path, ""), 200 if self.path in known else 404)


@pytest.mark.parametrize("last", [{"preempted": "TRUE"}, {"maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}])
def test_a_machine_that_is_about_to_go_is_drained(last: dict[str, str]) -> None:
    own = private_ray.own_node()
    address, labels = ray.get_runtime_context().gcs_address, f"--labels=kind={next(iter(last))}"
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--num-cpus=1", labels]
    subprocess.run(start, check=True, capture_output=True, timeout=240)
    (machine,) = [node for node in private_ray.nodes() if node.alive and node.id != own]
    told: list[int] = []
    with StandInServer(Metadata) as server:
        server.says = {"preempted": "FALSE"}

        @ray.remote(num_cpus=1, label_selector={"kind": next(iter(last))})
        class Machine:
            def watch(self) -> str:
                notices.pass_on()
                return private_ray.own_node()

        named = {"env_vars": {notices.HOST: f"127.0.0.1:{server.server_port}"}}
        actor = Machine.options(runtime_env=named).remote()
        assert ray.get(actor.watch.remote(), timeout=240) == machine.id
        leaving = LeavingNodes([own, machine.id])
        leaving.then(lambda: told.append(1))
        time.sleep(3)
        assert private_ray.draining_nodes() == set() and leaving.ranks == [] and not told
        server.says |= last
        deadline = time.monotonic() + 60
        while not told:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert leaving.ranks == [1] and private_ray.draining_nodes() == {machine.id}
        leaving.then(lambda: told.append(2))
        assert told == [1, 2], "whoever asks later is told at once"
        leaving.close()
    ray.kill(actor)
    while any(node.alive and node.id == machine.id for node in private_ray.nodes()):
        assert time.monotonic() < deadline + 60, "Ray ends a drained node once nothing runs there"
        time.sleep(0.1)


def test_free_resources_leave_out_what_is_used_up() -> None:
    node = ray.get_runtime_context().get_node_id()
    assert private_ray.free_resources()[node]["TPU"] == 4
    group = placement_group([{"TPU": 4}], name="test:all")
    assert group.wait(240)
    assert "TPU" not in private_ray.free_resources()[node]
    private_ray.remove_placement_groups("test:")
    deadline = time.monotonic() + 240
    while private_ray.free_resources()[node].get("TPU") != 4:
        assert time.monotonic() < deadline


def test_remove_placement_groups() -> None:
    groups = [placement_group([{"CPU": 0.1}], name=name) for name in ("test:a", "other:b")]
    assert all(group.wait(240) for group in groups)
    private_ray.remove_placement_groups("test:")
    states = {group["name"]: group["state"] for group in placement_group_table().values()}
    assert (states["test:a"], states["other:b"]) == ("REMOVED", "CREATED")
    private_ray.remove_placement_groups("other:")


def test_cluster_id() -> None:
    assert len(bytes.fromhex(private_ray.cluster_id())) == ray.NodeID.size()


@serve.deployment
class Talker:
    """Says something at two levels when it starts, as a replica does, and an access log line at each call."""

    def __init__(self) -> None:
        log_as_serve_does()
        logging.getLogger("podslice").info("not worth a line")
        logging.getLogger("podslice").error("worth a line")

    def __call__(self) -> str:
        return "called"


def test_replicas_log_as_the_service_says(tmp_path: Path) -> None:
    logs = LoggingConfig(log_level="ERROR", encoding="JSON", logs_dir=str(tmp_path))
    target = serve.RunTarget(Talker.bind(), name="talker", route_prefix="/talker", logging_config=logs)
    (handle,) = serve.run_many([target])
    assert handle.remote().result() == "called"
    lines = [json.loads(line) for log in tmp_path.glob("replica_talker*") for line in log.read_text().splitlines()]
    assert [line["message"] for line in lines] == ["worth a line"]
    serve.delete("talker")


def test_the_config_by_which_serve_logs() -> None:
    assert private_ray.logging_config().model_dump() == LoggingConfig().model_dump(), "Serve was started without one"


def test_applications_with_versions() -> None:
    deployment = private_ray.with_version(Echo, "one", num_replicas=1)
    for version in ("one", "one", "two"):
        deployment = private_ray.with_version(Echo, version, num_replicas=1)
        serve.run(deployment.bind(), name="echo", route_prefix="/echo")
        application = private_ray.applications()["echo"]
        assert application["status"] == "RUNNING" and application["route_prefix"] == "/echo"
        assert {name: given.version for name, given in private_ray.given().items()} == {"echo": version}
        replicas = [one["replica_id"] for one in application["deployments"]["Echo"]["replicas"]]
        if version == "one":
            first = replicas
        assert (replicas == first) == (version == "one")
    private_ray.delete_application("echo")
    deadline = time.monotonic() + 240
    while "echo" in private_ray.applications():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_node_that_starts_too_late_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private_ray.TOO_LATE in inspect.getsource(ray._private.node)
    late = iter([Exception(f"{private_ray.TOO_LATE}. This could happen because"), ValueError("no such option")])
    left = list[subprocess.Popen[bytes]]()

    def init(**options: str) -> None:
        left.append(subprocess.Popen(["sleep", "600"]))
        raise next(late)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(ValueError, match="no such option"):
        private_ray.start_ray(namespace="serve")
    first, second = left
    assert not psutil.pid_exists(first.pid), "a late node's processes are ended"
    assert second.poll() is None, "nothing else is"
    second.kill()


def test_replicas_get_their_share_of_a_busy_machine() -> None:
    """A replica has this process's niceness, not Ray's 15; and who starts Ray for a server asks for that."""
    started = """
import os
from apps.serving.ingress.direct_ingress import prefer_direct_ingress
prefer_direct_ingress()
print(os.environ["RAY_worker_niceness"])
"""
    environment = {name: value for name, value in os.environ.items() if name not in PRIORITY}
    found = subprocess.run([sys.executable, "-c", started], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert found.stdout == "0\n", found.stderr
    assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)


def test_serve_is_started_when_all_proxies_are() -> None:
    assert set(serve.status().proxies.values()) == {ProxyStatus.HEALTHY}


def test_http_port() -> None:
    assert private_ray.controller_runs()
    assert private_ray.http_port() == PORT


def test_http_host() -> None:
    assert private_ray.http_host() == "127.0.0.1"


def test_logs_and_whose_cluster_it_is() -> None:
    assert Path(private_ray.logs(), "raylet.out").is_file()
    assert not private_ray.joined()


def test_no_process_of_rays_has_ended() -> None:
    assert private_ray.ended_processes() == []
    assert {"gcs_server", "raylet"} <= private_ray._worker().node.all_processes.keys()


def test_what_a_shutdown_looks_at() -> None:
    serve.run(Echo.options(graceful_shutdown_timeout_s=7).bind(), name="timed", route_prefix="/timed")
    assert private_ray.drain_timeouts()["timed"] == 7
    assert private_ray.open_at_proxies() == 0
    serve.delete("timed")


def test_what_is_kept_for_the_cluster() -> None:
    assert private_ray.kept("a") == b""
    private_ray.keep("a", b"1")
    private_ray.keep("a", b"2")
    assert private_ray.kept("a") == b"2" and private_ray.kept("b") == b""
