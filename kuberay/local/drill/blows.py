"""What a drill does to the service that answers: what is struck, and when that has happened."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ruamel.yaml import YAML

from kuberay.local import LocalError
from kuberay.local.cluster import EmulatedCluster, SlicePhase
from kuberay.local.dashboard import App, Dashboard
from kuberay.local.hosts import HostsPlan
from ray_configs.llm import LLMConfig

DRAIN_S: float = LLMConfig.model_fields["drain_timeout_s"].default


@dataclass(frozen=True)
class DrillOptions:
    """The drill's part of the command line."""

    kind: Literal["kill", "preempt", "upgrade", "zero"]
    slice: int = 0
    """Which slice is killed or preempted, by the number that the run shows."""
    times: int = 1
    """How often, over all runs that add to one file."""
    counts: Path | None = None


class Blow(Protocol):
    @property
    def flag(self) -> str:
        """The option that asks for it."""
        ...

    @property
    def quiet(self) -> bool:
        """Whether nobody asks until it is seen."""
        ...

    def words(self, times: int) -> str:
        """`2 kills of slice 0`."""
        ...

    def strike(self, cluster: EmulatedCluster, dashboard: Dashboard, number: int) -> None:
        """Begin with the blow of this number, from 0."""
        ...

    def seen(self, cluster: EmulatedCluster, apps: list[App]) -> bool:
        """Whether the service is struck just now. It is whole again once this was so, and is so no more."""
        ...


@dataclass
class LostSlice:
    """A slice is killed, or preempted: then its hosts are told first, and have their Pods' grace period."""

    slice: int
    notice: bool = False
    quiet = False

    @property
    def flag(self) -> str:
        return "--preempt-slice" if self.notice else "--kill-slice"

    def words(self, times: int) -> str:
        return f"{_counted(times, 'preemption' if self.notice else 'kill')} of slice {self.slice}"

    def strike(self, cluster: EmulatedCluster, dashboard: Dashboard, number: int) -> None:
        (cluster.preempt_slice if self.notice else cluster.kill_slice)(self.slice)

    def seen(self, cluster: EmulatedCluster, apps: list[App]) -> bool:
        return cluster.slices[self.slice].phase is not SlicePhase.up


@dataclass
class NewVersion:
    """Every application's config is changed in place: Serve replaces all of its processes, one after the other.

    What changes is `drain_timeout_s`, by a second, which no answer depends on.

    Args:
        serve_config: serveConfigV2, as it is first.
        port: Serve's.
    """

    serve_config: str
    port: int
    flag = "--upgrade"
    quiet = False

    def words(self, times: int) -> str:
        return _counted(times, "upgrade")

    def strike(self, cluster: EmulatedCluster, dashboard: Dashboard, number: int) -> None:
        config = YAML(typ="safe").load(self.serve_config)
        for application in config["applications"]:
            given = application["args"]
            given["drain_timeout_s"] = given.get("drain_timeout_s", DRAIN_S) + 1 + number % 2
        dashboard.deploy(json.dumps(config), self.port, cluster.head.look)

    def seen(self, cluster: EmulatedCluster, apps: list[App]) -> bool:
        return any(app.declared and app.status != "RUNNING" for app in apps)


class FromZero:
    """Nobody asks until the last slice is given back; then all do at once."""

    flag = "--from-zero"
    quiet = True

    def words(self, times: int) -> str:
        return f"{_counted(times, 'start')} from zero"

    def strike(self, cluster: EmulatedCluster, dashboard: Dashboard, number: int) -> None:
        pass

    def seen(self, cluster: EmulatedCluster, apps: list[App]) -> bool:
        return not any(running.slice.chips for running in cluster.slices)


def blow_of(options: DrillOptions, plan: HostsPlan, port: int) -> Blow:
    """What the command line asks for. Raises LocalError without such a slice."""
    if options.kind == "upgrade":
        return NewVersion(plan.serve_config, port)
    if options.kind == "zero":
        return FromZero()
    blow = LostSlice(options.slice, options.kind == "preempt")
    if blow.slice >= len(plan.slices):
        names = ", ".join(f"{number}: {slice.name}" for number, slice in enumerate(plan.slices))
        raise LocalError(f"{blow.flag} {blow.slice}: there is no such slice; there are {names or 'none'}")
    return blow


def _counted(times: int, noun: str) -> str:
    return f"{times} {noun}{'s' * (times != 1)}"
