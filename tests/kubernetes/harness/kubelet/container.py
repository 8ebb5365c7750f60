"""Runs one container of a Pod: start, probes, restarts by the restart policy, stop."""

import asyncio
import contextlib
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.kubernetes.harness.async_api import ApiError
from tests.kubernetes.harness.kubelet import machine
from tests.kubernetes.harness.kubelet.environment import NotYet, environment, expand
from tests.kubernetes.harness.kubelet.probes import CLOCK, Probe, http_get
from tests.kubernetes.harness.kubelet.sandbox import Process

if TYPE_CHECKING:
    from tests.kubernetes.harness.kubelet.pod import Pod

RETRY_S = 2
HOLD_S = 20
"""A starting container keeps others from starting until it is ready, or for at most this long."""
BACK_OFF_S = (0, 10, 20, 40, 80, 160, 300)
"""Delay before each restart of a container that keeps exiting, as in a real kubelet."""
NO_REGISTRY = ".invalid/"
"""Images from hosts in this top-level domain fail to pull. All other image names are accepted and ignored."""


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Container:
    def __init__(self, pod: "Pod", spec: dict[str, Any], init: bool = False):
        self.pod, self.spec, self.name = pod, spec, spec["name"]
        self._init = init
        self.process: Process | None = None
        self.starts = 0
        self.ready = self.started = False
        self.code: int | None = None
        """Of its last run, once that has ended."""
        self._waiting: tuple[str, str] | None = ("PodInitializing", "")
        self._began = self._ended = ""
        self._last: dict[str, Any] = {}
        self._stopping = False

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def over(self) -> bool:
        """Whether it has exited and will not be restarted."""
        return self.code is not None and not self._again

    @property
    def log(self) -> Path:
        return self.log_of(self.starts)

    def log_of(self, start: int) -> Path:
        """`start` counts from 1."""
        return self.pod.logs / f"{self.name}.{start}.log"

    async def run(self) -> None:
        """Runs the container and its restarts; returns when it will not be started again."""
        while True:
            env = await self._environment()
            async with asyncio.TaskGroup() as group:
                started = asyncio.Event()
                group.create_task(self._start_in_turn(env, started))
                await started.wait()
                probing = group.create_task(self._probe())
                self.code = await self.process.wait()
                probing.cancel()
            self.ready = self.started = False
            self._ended = now()
            self.pod.changed()
            if self._stopping or not self._again:
                return
            await self._back_off()

    async def _environment(self) -> dict[str, str]:
        """Its environment. Waits until every ConfigMap and Secret that it refers to exists."""
        while True:
            try:
                if NO_REGISTRY in self.spec["image"]:
                    self._wait_for("ImagePullBackOff", f'Back-off pulling image "{self.spec["image"]}"')
                else:
                    return await environment(self.pod.sources, self.spec)
            except (NotYet, ApiError, aiohttp.ClientError, TimeoutError) as error:
                self._wait_for("CreateContainerConfigError", str(error))
            await asyncio.sleep(RETRY_S)

    async def _start_in_turn(self, env: dict[str, str], started: asyncio.Event) -> None:
        """Starts containers in turn: on few cores, many at once would miss the deadlines of `ray start`."""
        if self._init:  # they take turns as a whole: see Pod
            await self._start(env)
            started.set()
            return
        async with self.pod.starting:
            await self._start(env)
            started.set()
            end = time.monotonic() + HOLD_S
            while self.running and not self.ready and time.monotonic() < end:
                await asyncio.sleep(0.1)

    async def _start(self, env: dict[str, str]) -> None:
        command = [expand(word, env) for word in (*self.spec.get("command", ()), *self.spec.get("args", ()))]
        if self.code is not None:
            self._last = {"terminated": self._terminated()}
        self.starts += 1
        self.process = await self.pod.sandbox.start(
            f"{self.name}.{self.starts}",
            command,
            env,
            [*machine.image_mounts(), *self.pod.volumes.mounts(self.spec)],
            self.spec.get("workingDir", str(machine.ROOT)),
            self.log,
        )
        self._waiting, self.code, self._began = None, None, now()
        self.pod.changed()

    async def stop(self, kill_at: "KillAt") -> None:
        """Runs the preStop hook, sends SIGTERM, and SIGKILL when the grace period is over."""
        self._stopping = True
        if not self.running:
            return
        if hook := self.spec.get("lifecycle", {}).get("preStop"):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hook(hook), max(0, kill_at.time - time.monotonic()))
        self.process.signal(signal.SIGTERM)
        while self.running and time.monotonic() < kill_at.time:
            await asyncio.sleep(0.1)
        while self.running:
            self.process.signal(signal.SIGKILL)
            await asyncio.sleep(0.1)

    def status(self) -> dict[str, Any]:
        """Its containerStatus."""
        if self._waiting is not None:
            reason, message = self._waiting
            state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        elif self.code is not None:
            state = {"terminated": self._terminated()}
        else:
            state = {"running": {"startedAt": self._began}}
        last = self._last
        if self._waiting is not None and self.code is not None:
            last = {"terminated": self._terminated()}
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "",
            "containerID": f"namespaces://{self.pod.uid}/{self.name}/{self.starts}" if self.starts else "",
            "restartCount": max(0, self.starts - 1),
            "ready": self.code == 0 if self._init else self.ready,
            "started": self.running and (self.started or self._init),
            "state": state,
            "lastState": last,
        }

    @property
    def _again(self) -> bool:
        policy = self.pod.spec.get("restartPolicy", "Always")
        if self._init:
            return self.code != 0 and policy != "Never"
        return policy == "Always" or (policy == "OnFailure" and self.code != 0)

    def _wait_for(self, reason: str, message: str) -> None:
        if self._waiting != (reason, message):
            self._waiting = (reason, message)
            self.pod.changed()
            self.pod.event("Warning", "Failed", f"Error: {message}")

    async def _back_off(self) -> None:
        pause = BACK_OFF_S[min(self.starts, len(BACK_OFF_S)) - 1]
        if pause:
            self.pod.event("Warning", "BackOff", f"Back-off restarting failed container {self.name}")
            self._waiting = ("CrashLoopBackOff", f"back-off {pause}s restarting failed container={self.name}")
            self.pod.changed()
        await asyncio.sleep(pause)

    async def _probe(self) -> None:
        if self._init:
            return
        if startup := self.spec.get("startupProbe"):
            probe = self._new_probe(startup)
            async for good in probe.verdicts():
                if good:
                    break
                await self._restart("Startup", probe)
                return
        self.started = True
        async with asyncio.TaskGroup() as group:
            if liveness := self.spec.get("livenessProbe"):
                group.create_task(self._live(self._new_probe(liveness)))
            if readiness := self.spec.get("readinessProbe"):
                group.create_task(self._become_ready(self._new_probe(readiness)))
            else:
                self.ready = True
            self.pod.changed()

    def _new_probe(self, spec: dict[str, Any]) -> Probe:
        return Probe(spec, self.spec, self.process, self.pod.ip)

    async def _live(self, probe: Probe) -> None:
        async for good in probe.verdicts():
            if not good:
                await self._restart("Liveness", probe)
                return

    async def _become_ready(self, probe: Probe) -> None:
        async for good in probe.verdicts():
            if good != self.ready:
                self.ready = good
                if not good:
                    self._unhealthy("Readiness", probe)
                self.pod.changed()

    async def _restart(self, kind: str, probe: Probe) -> None:
        """Stops it; `run` starts it again."""
        self._unhealthy(kind, probe)
        self.pod.event("Normal", "Killing", f"Container {self.name} failed {kind.lower()} probe, will be restarted")
        process = self.process
        process.signal(signal.SIGTERM)
        grace = time.monotonic() + self.pod.spec.get("terminationGracePeriodSeconds", 30)
        while process.alive and time.monotonic() < grace:
            await asyncio.sleep(0.1)
        process.signal(signal.SIGKILL)

    def _unhealthy(self, kind: str, probe: Probe) -> None:
        self.pod.event("Warning", "Unhealthy", f"{kind} probe failed: {probe.said}")

    async def _hook(self, hook: dict[str, Any]) -> None:
        if "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
        elif "exec" in hook:
            await self.process.run(hook["exec"]["command"], 24 * 3600)
        elif "httpGet" in hook:
            with contextlib.suppress(OSError, aiohttp.ClientError):
                async with asyncio.timeout(10 * CLOCK):
                    await http_get(hook["httpGet"], self.spec, self.pod.ip)

    def _terminated(self) -> dict[str, Any]:
        return {
            "exitCode": self.code,
            "reason": "Completed" if self.code == 0 else "Error",
            "startedAt": self._began,
            "finishedAt": self._ended or now(),
        }


class KillAt:
    """The time at which a terminating Pod is killed. A second deletion with a shorter grace period moves it forward."""

    def __init__(self) -> None:
        self.time = float("inf")

    def no_later_than(self, seconds: float) -> None:
        self.time = min(self.time, time.monotonic() + seconds)
