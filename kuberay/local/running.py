"""The main loop of a local run: starts and deploys the service, monitors it, and cleans up when interrupted."""

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import httpx
import psutil

from kuberay.local import LocalError, ServiceFailed
from kuberay.local.cluster import EmulatedCluster, SlicePhase
from kuberay.local.dashboard import App, Dashboard, differences
from kuberay.local.drill.blows import DrillOptions, blow_of
from kuberay.local.drill.kills import Drill
from kuberay.local.folder import RunFolder
from kuberay.local.hosts import HostsPlan, plan_of
from kuberay.local.memory import memory_gb, refuse_too_large, weights_gb
from kuberay.local.ports import address_of, free_ports, is_free
from kuberay.local.raylet import Site, has_haproxy
from kuberay.local.scaling_down import ZERO_AFTER_S, scale_down
from kuberay.output import outlive_readers
from kuberay.progress import StatusDisplay
from kuberay.render import render
from ray_configs.cluster.deployed import Head
from ray_configs.exposure import ClusterIP
from ray_configs.service import Application, Service

PERIOD_S = 0.25
TO_CONNECT_S = 60
"""Time for a process to join the cluster, before it waits for open requests."""


@dataclass(frozen=True)
class LocalOptions:
    """The options of the command line."""

    port: int = 8000
    tiny: bool = False
    hosts_per_slice: int | None = None
    slices: int | None = None
    autoscale: bool = False
    insist: bool = False
    drill: DrillOptions | None = None


def run(service: Service, options: LocalOptions) -> None:
    """Block until SIGINT, SIGTERM or SIGHUP.

    Raises:
        LocalError: the service cannot run here, or its drill harmed a stream.
        ServiceFailed: it started, but its deployment failed.
        KeyboardInterrupt: it was stopped before it was ready.
    """
    if not sys.platform.startswith("linux"):
        raise LocalError("needs Linux, whose kernel tracks and ends each host's processes; use a container")
    folder = RunFolder(options.port)
    if not folder.acquire():
        raise LocalError(
            f"a service runs on port {options.port} already; choose another --port, or add --kill-host SLICE:HOST "
            "to kill one of its hosts"
        )
    outlive_readers()
    with _on(signal.default_int_handler):
        try:
            _run(service, options, folder)
        finally:
            folder.release()


def kill_host(host: str, port: int) -> None:
    """Ask the run on a port to kill a host, `SLICE:HOST`. Raises LocalError if nothing runs there."""
    if not re.fullmatch(r".+:\d+", host):
        raise LocalError(f"--kill-host {host}: write SLICE:HOST, such as 0:0, with the numbers that the run shows")
    folder = RunFolder(port)
    if folder.acquire():
        folder.release()
        raise LocalError(
            f"nothing runs on port {port}, so there is no host to kill: give the --port of a run, or start one first, "
            "without --kill-host"
        )
    folder.ask(host)
    _say(f"asked the run on port {port}; its terminal shows the result")


def _run(service: Service, options: LocalOptions, folder: RunFolder) -> None:
    if not is_free(options.port):
        raise LocalError(f"port {options.port} is in use by another program; choose one with --port")
    to_zero = options.drill is not None and options.drill.kind == "zero"
    scaled = scale_down(service, tiny=options.tiny, hosts_per_slice=options.hosts_per_slice, soon_zero=to_zero)
    manifest = next(item for item in render(scaled.service) if item["kind"] == "RayService")
    address = address_of(options.port)
    plan = plan_of(
        manifest,
        address=address,
        environment=os.environ,
        replicas=options.slices,
        autoscaled=options.autoscale or to_zero,
        idle_s=ZERO_AFTER_S if to_zero else None,
    )
    drill = None
    if options.drill:
        drill = Drill(scaled.service, blow_of(options.drill, plan, options.port), options.drill, options.port)
    refuse_too_large(plan, weights_gb(scaled.service), options.insist)
    for sentence in (*scaled.notes, *_differences_of(plan, scaled.service)):
        _say(sentence)
    token = secrets.token_hex(32) if plan.token else None
    ports = free_ports(options.port)
    site = Site(address, folder.path, next(ports), next(ports), next(ports), token, options.tiny)
    if token:
        (token_file := folder.path / "token").touch(mode=0o600)
        token_file.write_text(token)
    cluster = EmulatedCluster(plan, site, ports, _say)
    dashboard = Dashboard(site.dashboard_port, token)
    try:
        _Run(plan, options, folder, cluster, dashboard, scaled.service.drain_s, drill).forever()
    finally:
        dashboard.close()
        with _on(signal.SIG_IGN):  # a second Ctrl-C must not interrupt the cleanup
            began = time.monotonic()
            _say("stopping")
            left = "" if cluster.stop() else "; some processes would not die"
            _say(f"stopped after {time.monotonic() - began:.1f} s{left}")


@dataclass
class _Run:
    """The loop and its state."""

    _plan: HostsPlan
    _options: LocalOptions
    _folder: RunFolder
    _cluster: EmulatedCluster
    _dashboard: Dashboard
    _drain_s: float
    _drill: Drill | None
    _began: float = field(default_factory=time.monotonic)
    _deployed_to: int = 0
    """The head that has the service's config, by its number; 0: none yet."""
    _ready: bool = False
    _apps: list[App] = field(default_factory=list)
    _asked: float = 0.0

    def forever(self) -> None:
        try:
            with StatusDisplay() as display:
                while self._once():
                    display.show(self._status())
                    time.sleep(PERIOD_S)
        except KeyboardInterrupt:
            if not self._ready:
                raise
            if self._drill:
                _say(f"drill: stopped after {self._drill.interrupted()}")
            _say("open requests may finish; Ctrl-C again does not wait for them")
            with suppress(KeyboardInterrupt):
                self._cluster.head.drain(self._drain_s + TO_CONNECT_S)
        else:
            if self._drill:
                _say(self._drill.verdict())

    def _once(self) -> bool:
        """One pass of the loop. False: the drill is over."""
        self._cluster.tick(self._alive)
        if self._deployed_to not in (0, self._cluster.heads):
            self._deployed_to, self._ready, self._apps = 0, False, []
        if (host := self._folder.asked()) is not None:
            try:
                self._cluster.kill(host)
            except LocalError as error:
                _say(str(error))
        if self._cluster.ready and not self._deployed_to and self._checked():
            head = self._cluster.head
            if self._dashboard.deploy(self._plan.serve_config, self._options.port, head.look):
                self._deployed_to = self._cluster.heads
        if self._deployed_to and time.monotonic() - self._asked > 1:
            self._look_at_apps()
        return self._drill is None or self._drill.step(self._cluster, self._dashboard, self._apps, self._ready)

    def _checked(self) -> bool:
        """Whether Ray's view matches GKE's; False if Ray does not answer yet. Raises ServiceFailed if it differs."""
        try:
            nodes = self._dashboard.nodes()
        except httpx.HTTPError:
            return False
        if wrong := differences(self._plan.hosts, nodes):
            raise ServiceFailed("Ray does not see the hosts as GKE would present them:\n" + "\n".join(wrong))
        _say(
            f"Ray sees {_count(len(self._plan.hosts) - 1, 'host')} and a head with GKE's labels and resources "
            f"after {self._seconds()}; deploying serveConfigV2"
        )
        return True

    def _look_at_apps(self) -> None:
        with suppress(httpx.HTTPError):  # busy; retried next time
            self._apps = self._dashboard.apps()
        self._asked = time.monotonic()
        declared = [app for app in self._apps if app.declared]
        for app in declared:
            if app.status == "DEPLOY_FAILED" and not self._ready:
                raise ServiceFailed(f"application {app.name} failed to deploy:\n{app.message}")
        if not self._ready and declared and all(app.status == "RUNNING" for app in declared):
            self._ready = True
            self._cluster.note_ready()
            _say(f"ready after {self._seconds()}: http://127.0.0.1:{self._options.port}  (Ctrl-C stops it)")

    def _alive(self) -> set[str]:
        try:
            return set(self._dashboard.nodes())
        except httpx.HTTPError:
            return self._cluster.host_names  # unknown; retried next time

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._began:.0f} s"

    def _status(self) -> list[str]:
        lines = [f"{self._plan.name} on http://127.0.0.1:{self._options.port}, dashboard {self._dashboard.url}"]
        if not self._cluster.head.up:
            lines.append("head: starting")
        for place, running in enumerate(self._cluster.slices):
            total = len(running.slice.hosts)
            line = f"{running.slice.kind} {place} {running.slice.name}: {running.up} of {total} hosts up"
            if running.phase is not SlicePhase.up and running.why:
                line += f"; {running.why}"
                line += "" if running.unwanted else f", the {running.slice.kind} is being recreated"
            lines.append(line)
        for app in self._apps:
            states = ", ".join(f"{count} {state}" for state, count in sorted(app.replicas.items())) or "none"
            line = f"{app.name} {app.status}: {_count(app.wanted, 'replica')} wanted; {states}"
            if app.message and app.status != "RUNNING":
                line += f"; {app.message.strip().splitlines()[-1]}"
            lines.append(line)
        return [*lines, self._drill.saying] if self._drill else lines


def _differences_of(plan: HostsPlan, service: Service) -> Iterator[str]:
    """Sentences on differences from GKE, besides those of `scale_down`."""
    if service.elastic and plan.ray_cluster is None:
        yield "no autoscaler: each group keeps its initial slices (--slices N for more, --autoscale for Ray's own)"
    for name in plan.absent:
        yield f"left out: {name}, from a Secret or ConfigMap in the manifest; set it in this shell's environment"
    if not has_haproxy():
        yield "no HAProxy: Ray has none for this machine, so Serve's own proxy answers"
    if service.bucket and service.bucket.mount:
        yield f"left out: the bucket at {service.bucket.mount}"
    yield from _left_out(service)
    chips = sum(host.chips for host in plan.hosts)
    what = f" with {chips} JAX CPU devices for chips" if chips else ""
    needed = memory_gb(plan)
    hosts = f"a head and {_count(len(plan.hosts) - 1, 'host')}{what}"
    yield f"starting {hosts}; takes about {needed:.0f} GB of memory besides the models' weights"
    if (there := psutil.virtual_memory().available / 1e9) < needed:
        yield f"WARNING: only {there:.1f} GB are available; fewer hosts need less: --hosts-per-slice"


def _left_out(service: Service) -> Iterator[str]:
    """What the manifest has beside its Ray cluster's own containers."""
    if redis := service.gcs_fault_tolerance:
        yield f"left out: the Redis at {redis.redis_address}; a lost head ends every replica here"
    if not isinstance(service.exposure, ClusterIP):
        yield f"left out: the {service.exposure.kind}; clients reach the service on 127.0.0.1"
    if service.upgrade:
        yield "left out: upgrades, which need a second Ray cluster"
    overlays: list[Head | Application] = [service.head, *service.applications]
    if any(each.pod or each.container for each in overlays):
        yield "left out: what `pod` and `container` add to Pods, except environment variables of Ray's containers"
    containers: list[dict[str, Any]] = [each.container for each in overlays]
    sources = [source for container in containers for source in container.get("envFrom", [])]
    if sources:
        names = sorted({str(ref.get("name")) for source in sources for ref in source.values() if isinstance(ref, dict)})
        yield f"left out: envFrom {', '.join(names)}; set its variables in this shell's environment"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _say(text: str) -> None:
    print(f"podslice: {text}", flush=True)


@contextmanager
def _on(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Handle the signals that end a program with `handler`, but not a SIGHUP that nohup has set to be ignored."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
