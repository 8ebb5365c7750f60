"""What `python -m kuberay local` refuses at once, in a line, with exit status 2; and the folder that runs meet in."""

import inspect
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.serve._private import cluster_node_info_cache

from kuberay.local import LocalError, memory, running
from kuberay.local.folder import RunFolder
from kuberay.local.hosts import find_host, plan_of
from kuberay.local.ports import address_of, free_ports, hold
from kuberay.local.raylet import Site, ray_start
from kuberay.local.scaling_down import scale_down
from kuberay.render import render
from ray_configs.exposure import LoadBalancer
from ray_configs.llm import LLMConfig
from ray_configs.loading import load
from ray_configs.service import Application, GcsFaultTolerance, Service
from ray_configs.upgrade import NewCluster
from tests.kuberay.local.local_runs import REPOSITORY, serving_port
from tests.ports import free_port

LOCAL = "ray_configs.catalog.local"


def refused(*arguments: str) -> str:
    port = () if "--port" in arguments else ("--port", str(free_port()))
    command = [sys.executable, "-m", "kuberay", "local", *arguments, *port]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done.stderr


def test_a_job():
    assert "is a job; only a service runs locally" in refused("ray_configs.catalog.smoke_multi_host")


def test_a_config_that_is_not_there():
    assert "there is no module 'no.such'" in refused("no.such")


def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert f"port {port} is in use by another program; choose one with --port" in refused(LOCAL, "--port", port)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("6:0", "'6:0' must be SLICE:HOST, such as 0:0; there are 0: tpu-v5e-2x4-4t-0, 1: tpu-v5e-2x4-4t-1, 2: cpu-"),
        ("tpu-v5e-4x8-0:0", "must be SLICE:HOST"),
        ("1", "must be SLICE:HOST"),
        ("1:x", "must be SLICE:HOST"),
        ("tpu-v5e-2x4-4t-1:2", "tpu-v5e-2x4-4t-1 has hosts 0 to 1, no host 2"),
    ],
)
def test_a_host_that_is_not_there_is_not_found(host, said):
    service = scale_down(load("ray_configs.catalog.spmd_175b"), tiny=True, hosts_per_slice=2).service
    manifest = next(item for item in render(service) if item["kind"] == "RayService")
    with pytest.raises(LocalError) as refusal:
        find_host(plan_of(manifest, address="127.0.0.2").slices, host)
    assert said in str(refusal.value)


def test_a_host_to_kill_where_nothing_runs_starts_nothing():
    """Whoever has mistyped the port wants no second service."""
    port = serving_port()
    said = refused("ray_configs.catalog.spmd_175b", "--tiny", "--kill-host", "1:1", "--port", str(port))
    assert f"nothing runs on port {port}" in said and "--port" in said
    assert RunFolder(port).acquire(), "the port is free for a run"


def test_a_host_to_kill_is_a_slice_and_a_number():
    assert "write SLICE:HOST, such as 0:0" in refused("ray_configs.catalog.spmd_175b", "--kill-host", "a")


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        (
            "ray_configs.catalog.spmd_175b",
            ("--kill-slice", "7"),
            "--kill-slice 7: there is no such slice; there are 0: tpu-",
        ),
        ("ray_configs.catalog.cell_v5e_4x8", ("--kill-slice", "0"), "asks a language model, and"),
        ("ray_configs.catalog.spmd_175b", ("--kills", "3"), "belong to --kill-slice"),
        ("ray_configs.catalog.spmd_175b", ("--kill-slice", "0", "--preempt-slice", "0"), "leave all but one out"),
    ],
)
def test_a_drill_that_cannot_be(config, options, said):
    assert said in refused(config, "--tiny", "--hosts-per-slice", "1", *options)


@pytest.mark.slow
def test_a_port_that_another_command_has_claimed_and_does_not_listen_on_yet(monkeypatch, tmp_path):
    """A start takes minutes until something listens. Another user's, or one with another TMPDIR, counts too."""
    port = str(serving_port())
    with hold(int(port)):
        assert f"a service runs on port {port} already" in refused(LOCAL, "--port", port)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        assert f"a service runs on port {port} already" in refused(LOCAL, "--port", port)
        serve = [sys.executable, "-m", "podslice", "serve", "--port", port]
        done = subprocess.run(serve, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and f"port {port} is another podslice server's" in done.stderr, done.stderr


def test_hosts_that_are_not_sold():
    said = refused("ray_configs.catalog.spmd_175b", "--hosts-per-slice", "3")
    assert "--hosts-per-slice can be 1, 2, 4, 8" in said


def test_too_little_memory_is_said(monkeypatch):
    service = load("ray_configs.catalog.spmd_175b")
    manifest = next(item for item in render(service) if item["kind"] == "RayService")
    plan = plan_of(manifest, address="127.0.0.2")
    monkeypatch.setattr(running.psutil, "virtual_memory", lambda: SimpleNamespace(available=3.2e9))
    said = " ".join(running._differences_of(plan, service))
    assert (
        "a head and 20 hosts with 64 JAX CPU devices for chips;" in said
        and "WARNING: only 3.2 GB are available" in said
    )
    monkeypatch.setattr(running.psutil, "virtual_memory", lambda: SimpleNamespace(available=300e9))
    assert "WARNING" not in " ".join(running._differences_of(plan, service))


def test_too_little_memory_is_refused_unless_one_insists(monkeypatch):
    """Oracle: the memory that the command itself says it takes."""
    service = load("ray_configs.catalog.spmd_175b")
    manifest = next(item for item in render(service) if item["kind"] == "RayService")
    plan = plan_of(manifest, address="127.0.0.2")
    needed = memory.memory_gb(plan)
    monkeypatch.setattr(running.psutil, "virtual_memory", lambda: SimpleNamespace(available=(needed - 0.2) * 1e9))
    with pytest.raises(LocalError, match=rf"take about {needed:.1f} GB.*--hosts-per-slice N; or --insist"):
        memory.refuse_too_large(plan, 0, insist=False)
    memory.refuse_too_large(plan, 0, insist=True)
    monkeypatch.setattr(running.psutil, "virtual_memory", lambda: SimpleNamespace(available=(needed + 0.2) * 1e9))
    memory.refuse_too_large(plan, 0, insist=False)


def test_weights_that_exhaust_the_machine_are_refused(monkeypatch):
    """Oracle: the name's 175 billion parameters, a byte each, in two replicas."""
    monkeypatch.setattr(running.psutil, "virtual_memory", lambda: SimpleNamespace(available=300e9))
    service = load("ray_configs.catalog.spmd_175b")
    assert memory.weights_gb(service) == 350
    plan = plan_of(next(item for item in render(service) if item["kind"] == "RayService"), address="127.0.0.2")
    with pytest.raises(LocalError, match=r"weights take about 350 GB .* 300.0 GB are available: --tiny"):
        memory.refuse_too_large(plan, memory.weights_gb(service), insist=False)
    memory.refuse_too_large(plan, memory.weights_gb(service), insist=True)
    small = scale_down(service, tiny=True).service
    assert memory.weights_gb(small) == 0
    memory.refuse_too_large(plan, memory.weights_gb(small), insist=False)


def test_a_job_is_refused_with_what_to_run():
    said = refused("ray_configs.catalog.smoke_multi_host")
    assert "podslice check ray_configs.catalog.smoke_multi_host" in said and "apps.jobs.smoke" in said


def test_whatever_is_left_out_is_named():
    app = Application(config=LLMConfig(), container={"envFrom": [{"secretRef": {"name": "tokens"}}]})
    service = Service(
        name="s",
        applications=(app,),
        gcs_fault_tolerance=GcsFaultTolerance(redis_address="redis.default:6379"),
        exposure=LoadBalancer(),
        upgrade=NewCluster(),
    )
    manifest = next(item for item in render(service) if item["kind"] == "RayService")
    said = list(running._differences_of(plan_of(manifest, address="127.0.0.2"), service))
    for what in ("the Redis at redis.default:6379", "the load-balancer", "upgrades", "`pod` and `container`", "tokens"):
        assert [line for line in said if line.startswith("left out: ") and what in line], what


def test_node_names_are_addresses_that_haproxy_can_reach(tmp_path):
    """Oracle: Serve's own list of nodes, whose names it takes for addresses; names of our own are a label's."""
    names = inspect.getsource(cluster_node_info_cache)
    assert "node.node_name" in names, "Serve has another source of addresses: look again"
    service = load("ray_configs.catalog.spmd_175b")
    manifest = next(item for item in render(service) if item["kind"] == "RayService")
    plan, site = plan_of(manifest, address="127.31.64.1"), Site("127.31.64.1", tmp_path, 1, 2, 3, None)
    for host in plan.hosts:
        command = ray_start(host, site, head=host is plan.head)
        assert "--node-name=127.31.64.1" in command
        (labels,) = (word for word in command if word.startswith("--labels="))
        assert f"podslice/host={host.name}" in labels.removeprefix("--labels=").split(",")


def test_what_is_not_emulated_is_said():
    service = load("ray_configs.catalog.whole_graph")
    manifest = next(item for item in render(service) if item["kind"] == "RayService")
    said = " ".join(running._differences_of(plan_of(manifest, address="127.0.0.2"), service))
    assert (
        "no autoscaler: each group keeps its initial slices" in said
        and "left out: HF_TOKEN" in said
        and "bucket at /gcs" in said
    )


def test_a_folder_is_one_runs_alone_and_gone_after_it():
    port = serving_port()
    first, second = RunFolder(port), RunFolder(port)
    assert first.acquire() and not second.acquire()
    (first.path / "session").mkdir()
    first.release()
    assert not first.path.exists()
    assert second.acquire() and list(second.path.iterdir()) == []
    second.release()


def test_a_question_is_heard_once():
    port = serving_port()
    run, other = RunFolder(port), RunFolder(port)
    assert run.acquire() and run.asked() is None
    other.ask("1:3")
    assert run.asked() == "1:3" and run.asked() is None
    run.release()
    with pytest.raises(LocalError, match="starting or ending"):
        other.ask("1:3")


def test_a_question_that_comes_while_another_is_read_is_not_lost(monkeypatch):
    port = serving_port()
    run, other = RunFolder(port), RunFolder(port)
    assert run.acquire()
    other.ask("1:3")
    read = Path.read_text

    def meanwhile(path):
        monkeypatch.undo()
        other.ask("1:4")
        return read(path)

    monkeypatch.setattr(Path, "read_text", meanwhile)
    assert (run.asked(), run.asked(), run.asked()) == ("1:3", "1:4", None)
    run.release()


def test_what_a_crashed_run_left_is_cleared():
    port = serving_port()
    crashed = RunFolder(port)
    assert crashed.acquire()
    (crashed.path / "token").write_text("old")
    crashed._lock.close()  # as the kernel does for a process that is gone
    after = RunFolder(port)
    assert after.acquire() and not (after.path / "token").exists()
    after.release()


def test_two_runs_look_for_ports_in_different_places():
    assert address_of(8000) == "127.31.64.1" and address_of(8001) == "127.31.65.1"
    ports, others = free_ports(8000), free_ports(8001)
    assert not {next(ports) for _ in range(50)} & {next(others) for _ in range(50)}
