"""A drill's course: undisturbed answers first, then blow after blow, each once the service is whole again.

`blows` are what can be done to it.
"""

import os
import random
import threading
import time
from dataclasses import replace

from kuberay.local import LocalError
from kuberay.local.cluster import EmulatedCluster, SlicePhase
from kuberay.local.dashboard import App, Dashboard
from kuberay.local.drill.blows import Blow, DrillOptions
from kuberay.local.drill.streams import DrillCounts, Streams
from ray_configs.llm import LLMConfig
from ray_configs.service import Service

ANSWERING_S = (2.0, 6.0)
"""How long streams are answered before each blow: drawn anew, so that blows find them at other places."""
PAGES_S = 60.0
"""How long after the last stream a replica may take to free its pages; a caller that left is noticed only then."""

SAY_S = 10.0
"""Time between two tallies in the run's status."""


class StreamsHarmed(LocalError):
    """The drill's verdict is against the service."""

    status = 1


class Drill:
    """`step` is called from the run's loop, and never waits."""

    def __init__(self, service: Service, blow: Blow, options: DrillOptions, port: int):
        """Raises LocalError without a language model, or if the counts cannot be read."""
        asked = next((app for app in service.applications if isinstance(app.config, LLMConfig)), None)
        if asked is None or not isinstance(asked.config, LLMConfig):
            raise LocalError(f"{blow.flag} asks a language model, and {service.name} serves none: leave it out")
        self._blow, self._options, self.counts = blow, options, DrillCounts.read(options.counts)
        self._before = replace(self.counts)
        url = f"http://127.0.0.1:{port}{asked.route_prefix.rstrip('/')}"
        self._streams = Streams(url, asked.config.served_name, os.environ.get("PODSLICE_API_KEY"), self.counts)
        self._routers = asked.config.router_count
        self._recording: threading.Thread | None = None
        self._recorded: LocalError | str = ""
        self._strike_at = self._pages_until = self._say_at = 0.0
        self._struck_at: float | None = None
        self._seen = False
        self._pages: float | None = None
        self.saying = "drill: waits for the service"
        """What it does, as a line of the run's status."""

    def step(self, cluster: EmulatedCluster, dashboard: Dashboard, apps: list[App], ready: bool) -> bool:
        """One step, given the run's state. False: the drill is over.

        Raises:
            LocalError: the undisturbed service answers nothing.
        """
        whole = ready and is_whole(cluster, apps)
        if self._recording is None:
            if whole:
                self._recording = threading.Thread(target=self._record, daemon=True)
                self._recording.start()
                self.saying = "drill: asks for the undisturbed answers"
            return True
        if isinstance(self._recorded, LocalError):
            raise self._recorded
        if not self._recorded:
            return True
        return self._strike(cluster, dashboard, apps, whole)

    def _record(self) -> None:
        try:
            self._streams.record()
            self._streams.start()
            self._recorded = "done"
        except LocalError as error:
            self._recorded = error

    def _strike(self, cluster: EmulatedCluster, dashboard: Dashboard, apps: list[App], whole: bool) -> bool:
        now, options = time.monotonic(), self._options
        if self._pages_until:
            return self._ending(now)
        if self._struck_at is not None:
            struck = self._blow.seen(cluster, apps)  # not at once, after a notice
            if struck and self._blow.quiet and not self._seen:
                self._struck_at = now
                self._streams.go_on()
            self._seen |= struck
            if self._seen and whole and not struck:
                self.counts.longest_recovery_s = max(self.counts.longest_recovery_s, now - self._struck_at)
                self.counts.write(options.counts)
                self._struck_at, self._seen, self._strike_at = None, False, 0.0
        elif whole and self.counts.kills >= options.times:
            self._streams.stop()
            self._pages_until = now + PAGES_S
        elif whole and not self._strike_at:
            self._strike_at = now + random.uniform(*ANSWERING_S)
        elif whole and now >= self._strike_at:
            if self._blow.quiet:
                self._streams.hold()
            self._blow.strike(cluster, dashboard, self.counts.kills)
            self.counts.kills += 1
            self._struck_at = self._say_at = now
        if now >= self._say_at:
            self.saying, self._say_at = f"drill: {self.told()}", now + SAY_S
        return True

    def _ending(self, now: float) -> bool:
        if self._streams.running:
            self._pages_until = now + PAGES_S
            self.saying = "drill: the last streams may finish"
            return True
        self._pages = self._streams.pages_used()
        if self._pages and now < self._pages_until:
            self.saying = "drill: waits until no request holds pages"
            return True
        return False

    def told(self) -> str:
        """What was counted so far, in words."""
        counts = self.counts
        return (
            f"{self._blow.words(counts.kills)}, {counts.answers} answers, "
            f"{counts.lost} lost, {counts.wrong} wrong; longest pause {counts.longest_pause_s:.1f} s, "
            f"longest recovery {counts.longest_recovery_s:.0f} s"
        )

    def interrupted(self) -> str:
        """Ask for nothing more, and keep the counts. Returns them in words."""
        self._streams.stop()
        self.counts.write(self._options.counts)
        return self.told()

    def verdict(self) -> str:
        """The whole result. Raises StreamsHarmed if a stream was lost or wrong, or pages were not freed."""
        self.counts.write(self._options.counts)
        lines = [f"verdict: {self.told()}"]
        if self._before.kills:
            lines[0] += f" (earlier runs have {self._before.kills} of them)"
        lines += [f"not asked: {kind} ({why})" for kind, why in self._streams.left_out.items()]
        lines += self._streams.failures
        if self._pages:
            lines.append(f"requests that nobody reads still hold {self._pages:.1%} of a KV cache")
        if not (self.counts.lost or self.counts.wrong or self._pages):
            return "\n".join(lines)
        if not self._routers:
            lines.append(
                "the config has routers=0: a stream ends with the replica that answers it. Set routers=1 or more"
            )
        raise StreamsHarmed("\n".join(lines))


def is_whole(cluster: EmulatedCluster, apps: list[App]) -> bool:
    """Whether every slice is up, and every application has the replicas that it wants."""
    declared = [app for app in apps if app.declared]
    return (
        bool(declared)
        and all(running.phase is SlicePhase.up for running in cluster.slices)
        and all(app.status == "RUNNING" and app.replicas.get("RUNNING", 0) >= app.wanted for app in declared)
    )
