"""The emulated cluster: starts the hosts and, like KubeRay, recreates a slice as a whole when it loses one.

If Ray's head ends, for example because its GCS was killed, everything is recreated: no host can join another head.

There is no background thread: the loop in `running` calls `tick` several times a second from the main thread, because
Linux sends a child's parent-death signal when the thread that started it ends.
"""

import contextlib
import itertools
import math
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from kuberay.local import LocalError, ServiceFailed, container
from kuberay.local.autoscaling.autoscaler import RayAutoscaler
from kuberay.local.autoscaling.objects import LocalPod, WantedSlices
from kuberay.local.hosts import HOST_LABEL, Host, HostsPlan, LocalSlice, find_host
from kuberay.local.raylet import Raylet, Site

RECREATE_DELAY_S = 3
"""Pause before a slice's hosts restart. On GKE, scheduling the Pods and starting the image take a minute or more."""
NOTICED_S = 60
"""Longest wait for Ray to notice that a slice's hosts are gone, before they restart regardless."""
RAYS_DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
"""Environment variable of a Pod: how long Ray drains its node after SIGTERM."""
ATTEMPTS = 3
STOP_TIMEOUT_S = 15


class SlicePhase(StrEnum):
    starting = "starting"
    up = "up"
    going = "going"
    """Its hosts are being stopped."""
    gone = "gone"
    """Its hosts have stopped; it will be recreated, unless the autoscaler does not want it."""
    left = "left"
    """Nobody wants it, and Ray has forgotten its hosts."""


@dataclass
class RunningSlice:
    """A slice and the raylets of its hosts."""

    slice: LocalSlice
    raylets: dict[str, Raylet] = field(default_factory=dict)
    phase: SlicePhase = SlicePhase.starting
    why: str = ""
    """Why it is being recreated."""
    gone_since: float = 0.0
    notice: "subprocess.Popen[bytes] | None" = None
    """Tells Ray that its hosts are about to go."""
    ends_at: float = math.inf
    """When they go, after a notice."""
    unwanted: bool = False
    """Whether the autoscaler gives it back."""

    @property
    def up(self) -> int:
        return sum(raylet.up for raylet in self.raylets.values())


class EmulatedCluster:
    def __init__(self, plan: HostsPlan, site: Site, ports: Iterator[int], say: Callable[[str], None]):
        """Start the head.

        Args:
            say: receives a sentence for each event.
        """
        self._plan, self._site, self._ports, self._say = plan, site, ports, say
        container.become_subreaper()
        self.slices = [RunningSlice(slice) for slice in plan.slices]
        self._autoscaler: RayAutoscaler | None = None
        if plan.ray_cluster is not None:
            self._autoscaler = RayAutoscaler(site.folder / "autoscaler", plan.ray_cluster)
        self._failures: Counter[str] = Counter()
        """Failed starts, by host. A head that ended before the service was ready has failed too."""
        self.heads = 1
        """Heads so far. A new one knows nothing of what was deployed."""
        self.head = self._start(plan.head, head=True)

    @property
    def ready(self) -> bool:
        return self.head.up and all(running.phase is SlicePhase.up for running in self.slices)

    @property
    def host_names(self) -> set[str]:
        """Of all slices that are not gone for good."""
        return {host.name for running in self.slices for host in running.slice.hosts}

    def kill(self, wanted: str) -> None:
        """Kill a host as if its machine had failed. Raises LocalError if it is unknown or not up."""
        place, host = find_host([running.slice for running in self.slices], wanted)
        running, name = self.slices[place], host.name
        raylet = running.raylets.get(name)
        if raylet is None or not raylet.up:
            raise LocalError(f"host {name} is not up; its slice is {running.phase.value}")
        raylet.stop()
        raylet.wait(STOP_TIMEOUT_S)
        running.why = f"host {name} was killed"

    def kill_slice(self, number: int) -> None:
        """Kill all hosts of a slice at once, as when it is preempted without notice."""
        running = self.slices[number]
        for raylet in running.raylets.values():
            raylet.stop()
        for raylet in running.raylets.values():
            raylet.wait(STOP_TIMEOUT_S)
        running.why = f"all of {', '.join(running.raylets)} were killed"

    def preempt_slice(self, number: int) -> None:
        """Begin to preempt a slice: Ray learns of it as from SIGTERM, and its hosts go when their grace period ends.

        They may go earlier, as soon as nothing runs on them."""
        running = self.slices[number]
        wait_s = running.slice.hosts[0].env.get(RAYS_DRAIN, str(running.slice.grace_s))
        running.notice = self.head.run("apps.serving.machines.drain", wait_s, HOST_LABEL, *running.raylets)
        running.why = f"all of {', '.join(running.raylets)} were preempted"

    def tick(self, alive: Callable[[], set[str]]) -> None:
        """Run one pass of the control loop.

        Args:
            alive: returns the names of the hosts that Ray considers alive.

        Raises:
            ServiceFailed: a host does not start, or the head ends again and again before the service is ready.
        """
        if not self.head.look():
            self._replace_head()
        self._end_orphans()
        if not self.head.up:
            return
        if self._autoscaler is not None:
            self._scale(self._autoscaler.tick(self.head, self._pods()))
        for running in self.slices:
            self._look_after(running, alive)
        for running in self.slices:
            if running.phase is SlicePhase.starting:
                self._start_more(running)
        self.slices = [running for running in self.slices if running.phase is not SlicePhase.left]

    def _pods(self) -> list[LocalPod]:
        head = self.head.host
        pods = [LocalPod(head.name, head.group, "head", self.head.up)]
        for running in self.slices:
            if not running.unwanted:
                up = {name for name, raylet in running.raylets.items() if raylet.up}
                pods += [LocalPod(host.name, host.group, "worker", host.name in up) for host in running.slice.hosts]
        return pods

    def _scale(self, wanted: WantedSlices) -> None:
        """As KubeRay does: first what is unwanted goes, each slice as a whole, and then what is missing comes."""
        for running in self.slices:
            if not running.unwanted and not wanted.unwanted.isdisjoint(host.name for host in running.slice.hosts):
                running.unwanted = True
                self._say(f"{running.slice.kind} {running.slice.name} is given back, as Ray's autoscaler asks")
                if running.phase in (SlicePhase.starting, SlicePhase.up):
                    self._take_down(running, "Ray's autoscaler gives it back")
        for group, count in wanted.replicas.items():
            there = [running for running in self.slices if running.slice.group == group and not running.unwanted]
            for _ in range(count - len(there)):
                slice = self._new_slice(group, wanted.unwanted)
                self.slices.append(RunningSlice(slice))
                self._say(f"{slice.kind} {slice.name} starts, as Ray's autoscaler asks")

    def _new_slice(self, group: str, unwanted: frozenset[str]) -> LocalSlice:
        """The first whose name is free. KubeRay draws its Pods' names, so that none is that of an unwanted one."""
        taken = {running.slice.name for running in self.slices}
        for number in itertools.count():
            slice = self._plan.slice_of(group, number)
            if slice.name not in taken and unwanted.isdisjoint(host.name for host in slice.hosts):
                break
        return slice

    def note_ready(self) -> None:
        """The service is ready: if the head ends from now on, that is not the start's fault."""
        del self._failures[self.head.host.name]

    def _replace_head(self) -> None:
        name = self.head.host.name
        if self.head.up:
            self._failures[name] += 1
            if self._failures[name] == ATTEMPTS:
                raise ServiceFailed(
                    f"Ray's head ended {ATTEMPTS} times before the service was ready, the last time because "
                    f"{self.head.why_it_ended}:\n{self.head.last_words()}"
                )
            self._say(f"Ray's head ended: {self.head.why_it_ended}. It is recreated with every host, as on GKE")
            self.head.wait(STOP_TIMEOUT_S)
            for running in self.slices:
                if running.phase is not SlicePhase.gone:
                    self._take_down(running, "Ray's head ended")
        else:
            self._note_failed_start(self.head)
        self.heads += 1
        self.head = self._start(self.head.host, head=True)

    def stop(self) -> bool:
        """Stop every process. False if one could not be killed."""
        if self._autoscaler is not None:
            self._autoscaler.stop()
        raylets = self._raylets()
        for raylet in raylets:
            raylet.stop()
        for raylet in raylets:
            raylet.wait(STOP_TIMEOUT_S)
        return container.kill_descendants()

    def _look_after(self, running: RunningSlice, alive: Callable[[], set[str]]) -> None:
        ended = [raylet for raylet in running.raylets.values() if not raylet.look()]
        if running.notice is not None and (status := running.notice.poll()) is not None:
            if status != 0:
                raise ServiceFailed(f"Ray could not be told that {running.slice.name} goes:\n{self.head.last_words()}")
            running.notice, running.ends_at = None, time.monotonic() + running.slice.grace_s
        match running.phase:
            case SlicePhase.up if time.monotonic() > running.ends_at:
                self._take_down(running, running.why)
                self._say(f"{running.why}; their time is over")
            case SlicePhase.starting | SlicePhase.up if ended:
                for raylet in ended:
                    if raylet.up:
                        name, hosts = raylet.host.name, len(running.slice.hosts)
                        self._take_down(running, running.why if name in running.why else f"host {name} ended")
                        what = f"its whole slice of {hosts} hosts" if hosts > 1 else "it"
                        self._say(f"{running.why}; {what} is recreated")
                        break
                    self._note_failed_start(raylet)
                    del running.raylets[raylet.host.name]
            case SlicePhase.starting if running.up == len(running.slice.hosts):
                running.phase = SlicePhase.up
                for name in running.raylets:
                    del self._failures[name]
                if running.why:
                    self._say(f"{running.slice.kind} {running.slice.name} is up again")
                    running.why = ""
            case SlicePhase.going if len(ended) == len(running.raylets):
                for raylet in ended:
                    raylet.wait(STOP_TIMEOUT_S)
                running.raylets.clear()
                running.phase, running.gone_since = SlicePhase.gone, time.monotonic()
            case SlicePhase.gone if time.monotonic() - running.gone_since > RECREATE_DELAY_S:
                # Ray must not list a dead node beside a new one of the same name, which would confuse reservations.
                names = {host.name for host in running.slice.hosts}
                if not names & alive() or time.monotonic() - running.gone_since > NOTICED_S:
                    running.phase = SlicePhase.left if running.unwanted else SlicePhase.starting

    def _note_failed_start(self, failed: Raylet) -> None:
        """Allow ATTEMPTS starts: Ray gives a node half a minute to start, which a busy machine may exceed."""
        name = failed.host.name
        self._failures[name] += 1
        if self._failures[name] == ATTEMPTS:
            raise ServiceFailed(f"host {name} did not start in {ATTEMPTS} attempts:\n{failed.last_words()}")
        self._say(f"host {name} did not start; retrying: {failed.last_words(1)}")
        failed.wait(STOP_TIMEOUT_S)

    def _take_down(self, running: RunningSlice, why: str) -> None:
        running.why, running.ends_at = why, math.inf
        for raylet in running.raylets.values():
            raylet.stop()
        running.phase = SlicePhase.going

    def _start_more(self, running: RunningSlice) -> None:
        """Start its next host once no other is starting.

        Ray names a host's sockets by the first free number and creates them a second later, so two that start at the
        same time take the same names, and one of them dies.
        """
        missing = [host for host in running.slice.hosts if host.name not in running.raylets]
        if missing and all(raylet.up for raylet in self._raylets()):
            running.raylets[missing[0].name] = self._start(missing[0])

    def _start(self, host: Host, head: bool = False) -> Raylet:
        return Raylet(host, self._site, self._ports, head)

    def _raylets(self) -> list[Raylet]:
        return [self.head, *(raylet for running in self.slices for raylet in running.raylets.values())]

    def _end_orphans(self) -> None:
        """Kill processes inherited from a container that was killed from outside: they must not outlive it."""
        ours = [raylet.pid for raylet in self._raylets()]
        ours += [running.notice.pid for running in self.slices if running.notice is not None]
        if self._autoscaler is not None and self._autoscaler.pid is not None:
            ours.append(self._autoscaler.pid)
        for pid in container.descendants(os.getpid(), frozenset(ours)):
            container.kill(pid)
            # A grandchild becomes our child only when its parent is gone.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
