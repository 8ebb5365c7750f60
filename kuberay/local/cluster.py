"""The emulated cluster: brings its hosts up, and a slice that lost one back as KubeRay does, as a whole.

Nothing runs by itself here: the one loop in `running` calls `tick` several times a second, from the main thread, for
Linux ties a child's life to the thread that started it.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from kuberay.local import LocalError, ServiceFailed, container
from kuberay.local.hosts import Host, HostsPlan, LocalSlice
from kuberay.local.raylet import Raylet, Site

STARTING_AT_ONCE = max(2, os.cpu_count() or 1)
"""More of them would only wait for one another, and Ray's patience with itself is limited."""
RECREATE_DELAY_S = 3
"""Until a slice's hosts come back; on GKE it is the Pods' scheduling and the image's start, a minute or more."""
NOTICED_S = 60
"""Within which Ray must have noticed that a slice's hosts are gone; then they are started all the same."""
ATTEMPTS = 3
STOP_TIMEOUT_S = 15


class SlicePhase(StrEnum):
    starting = "starting"
    up = "up"
    going = "going"
    """Its hosts are being stopped."""
    gone = "gone"
    """They are, and it will be recreated."""


@dataclass
class RunningSlice:
    """A slice and the raylets of its hosts."""

    slice: LocalSlice
    raylets: dict[str, Raylet] = field(default_factory=dict)
    phase: SlicePhase = SlicePhase.starting
    why: str = ""
    """Why it is being recreated."""
    failures: Counter[str] = field(default_factory=Counter)
    """Starts of a host that failed."""
    gone_since: float = 0.0

    @property
    def up(self) -> int:
        return sum(raylet.up for raylet in self.raylets.values())


class EmulatedCluster:
    def __init__(self, plan: HostsPlan, site: Site, ports: Iterator[int], say: Callable[[str], None]):
        """Start the head.

        Args:
            say: hears a sentence about each thing that happens.
        """
        self._plan, self._site, self._ports, self._say = plan, site, ports, say
        container.become_subreaper()
        self.slices = [RunningSlice(slice) for slice in plan.slices]
        self._head_attempts = 1
        self.head = self._start(plan.head, head=True)

    @property
    def ready(self) -> bool:
        return self.head.up and all(running.phase is SlicePhase.up for running in self.slices)

    def kill(self, wanted: str) -> None:
        """Let a host die as if its machine had. Raises LocalError."""
        place, host = self._plan.find(wanted)
        running, name = self.slices[place], host.name
        raylet = running.raylets.get(name)
        if raylet is None or not raylet.up:
            raise LocalError(f"host {name} is not up; its slice is {running.phase.value}")
        raylet.stop()
        raylet.wait(STOP_TIMEOUT_S)
        running.why = f"host {name} was killed"

    def tick(self, alive: Callable[[], set[str]]) -> None:
        """Look after everything once.

        Args:
            alive: names of the hosts that Ray takes to be alive.

        Raises:
            ServiceFailed: the head has ended, or a slice does not come up.
        """
        if not self.head.look():
            if self.head.up or self._head_attempts == ATTEMPTS:
                raise ServiceFailed(f"Ray's head ended:\n{self.head.last_words()}")
            self._say(f"Ray's head did not start, and is started again: {self.head.last_words(1)}")
            self._head_attempts += 1
            self.head.wait(STOP_TIMEOUT_S)
            self.head = self._start(self.head.host, head=True)
        self._end_orphans()
        if not self.head.up:
            return
        for running in self.slices:
            self._look_after(running, alive)
        for running in self.slices:
            if running.phase is SlicePhase.starting:
                self._start_more(running)

    def stop(self) -> bool:
        """Nothing of it is left afterwards; False: a process would not die."""
        raylets = self._raylets()
        for raylet in raylets:
            raylet.stop()
        for raylet in raylets:
            raylet.wait(STOP_TIMEOUT_S)
        return container.kill_descendants()

    def _look_after(self, running: RunningSlice, alive: Callable[[], set[str]]) -> None:
        ended = [raylet for raylet in running.raylets.values() if not raylet.look()]
        match running.phase:
            case SlicePhase.starting | SlicePhase.up if ended:
                for raylet in ended:
                    if raylet.up:
                        self._take_down(running, raylet)
                        break
                    self._try_again(running, raylet)
            case SlicePhase.starting if running.up == len(running.slice.hosts):
                running.phase = SlicePhase.up
                running.failures.clear()
                if running.why:
                    self._say(f"{running.slice.kind} {running.slice.name} is up again")
                    running.why = ""
            case SlicePhase.going if len(ended) == len(running.raylets):
                for raylet in ended:
                    raylet.wait(STOP_TIMEOUT_S)
                running.raylets.clear()
                running.phase, running.gone_since = SlicePhase.gone, time.monotonic()
            case SlicePhase.gone if time.monotonic() - running.gone_since > RECREATE_DELAY_S:
                # Two of a name in Ray's list of nodes, one of them a ghost, would be news to whoever reserves a slice.
                names = {host.name for host in running.slice.hosts}
                if not names & alive() or time.monotonic() - running.gone_since > NOTICED_S:
                    running.phase = SlicePhase.starting

    def _try_again(self, running: RunningSlice, failed: Raylet) -> None:
        """Ray gives itself half a minute to start a node, which a busy machine may not keep to."""
        name = failed.host.name
        running.failures[name] += 1
        if running.failures[name] == ATTEMPTS:
            raise ServiceFailed(f"host {name} did not start in {ATTEMPTS} attempts:\n{failed.last_words()}")
        self._say(f"host {name} did not start, and is started again: {failed.last_words(1)}")
        failed.wait(STOP_TIMEOUT_S)
        del running.raylets[name]

    def _take_down(self, running: RunningSlice, ended: Raylet) -> None:
        if ended.host.name not in running.why:
            running.why = f"host {ended.host.name} ended"
        others = len(running.slice.hosts) - 1
        whole = f"; its slice is recreated whole, the other {others} too" if others else "; it is recreated"
        self._say(running.why + whole)
        for raylet in running.raylets.values():
            raylet.stop()
        running.phase = SlicePhase.going

    def _start_more(self, running: RunningSlice) -> None:
        for host in running.slice.hosts:
            starting = sum(not raylet.up for one in self.slices for raylet in one.raylets.values())
            if host.name not in running.raylets and starting < STARTING_AT_ONCE:
                running.raylets[host.name] = self._start(host)

    def _start(self, host: Host, head: bool = False) -> Raylet:
        return Raylet(host, self._site, self._ports, head)

    def _raylets(self) -> list[Raylet]:
        return [self.head, *(raylet for running in self.slices for raylet in running.raylets.values())]

    def _end_orphans(self) -> None:
        """What somebody else's kill of a container left is ours now, and must not live on beside its successor."""
        for pid in container.descendants(os.getpid(), frozenset(raylet.pid for raylet in self._raylets())):
            container.kill(pid)
            # A child of one of them is not ours yet: it comes to us when that one is gone.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
