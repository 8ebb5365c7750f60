"""Computes the steps from what Ray Serve runs to the desired state. Pure functions, so that tables can test them.

Each round starts from what is observed: a step that a crash cut short is computed again, and a finished one is not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from apps.cell.desired.state import Published
from ray_configs.llm import AdapterSource, LLMConfig

FIRST_RETRY_S, LAST_RETRY_S = 15.0, 600.0


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica as Serve reports it."""

    id: str
    state: str
    node: str
    address: str


@dataclass(frozen=True)
class ServeApp:
    """A Serve application of the cell, as Serve reports it."""

    status: str
    """Serve's ApplicationStatus: DEPLOYING, RUNNING, DEPLOY_FAILED, UNHEALTHY, DELETING ..."""
    message: str
    version: str
    """As the cell deployed it; `Version.parse` reads it."""
    wanted: int
    """Serve's target number of replicas."""
    surge_percent: int
    replicas: tuple[ReplicaStatus, ...]
    adapters: Mapping[str, AdapterSource] = field(default_factory=dict)
    """As the cell deployed it; see Target."""
    adapter_refusals: Mapping[str, str] = field(default_factory=dict)
    """Why its replicas refused an adapter; "" for one that all of them have loaded. Others are on their way."""
    config: LLMConfig | None = None
    """What its engines are started with."""

    @property
    def active(self) -> int:
        """Replicas that answer: also those that Serve tells of new adapters, which takes a second on a busy host."""
        return sum(replica.state in ("RUNNING", "UPDATING") for replica in self.replicas)


@dataclass(frozen=True)
class Version:
    """Serve replaces replicas when this changes: the config's digest, and the number of retries."""

    digest: str
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.digest}.{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> "Version":
        digest, _, attempt = text.rpartition(".")
        return cls(digest, int(attempt)) if attempt.isdigit() else cls(text)

    @property
    def retry_s(self) -> float:
        """Seconds from the failure of this attempt to the next one."""
        return min(FIRST_RETRY_S * 2.0**self.attempt, LAST_RETRY_S)


@dataclass(frozen=True)
class Target:
    """The desired state of one model."""

    digest: str
    replicas: int
    """Replicas that it may run now; 0: none yet."""
    surge_percent: int
    """How many additional replicas may run during an update, in percent of `replicas`."""
    adapters: Mapping[str, AdapterSource] = field(default_factory=dict)
    """LoRA adapters by name. Replicas load and unload them while they serve."""


@dataclass(frozen=True)
class Deploy:
    name: str
    version: Version


@dataclass(frozen=True)
class Delete:
    name: str


def assign(models: Mapping[str, Published], slices: int | None, placed: Mapping[str, int]) -> dict[str, int]:
    """Assign slices: the replicas of each model that may run now, at most as many as it should have.

    Placed replicas stay, then every model gets one, then the rest goes in order of publication: a model never loses
    its slice to another.

    Args:
        models: the published models, by name.
        slices: how many there are; None: unlimited.
        placed: replicas that each model was assigned before.
    """
    if slices is None:
        return {name: model.replicas for name, model in models.items()}
    order = sorted(models, key=lambda name: models[name].order)
    given = dict.fromkeys(order, 0)
    left = slices
    for least in (placed, dict.fromkeys(order, 1), {name: models[name].replicas for name in order}):
        for name in order:
            more = min(least.get(name, 0), models[name].replicas) - given[name]
            taken = max(0, min(more, left))
            given[name] += taken
            left -= taken
    return given


def surge_percent(replicas: int, spare: int | None) -> int:
    """The largest surge that fits into `spare` slices; None: unlimited. Serve rounds up to whole replicas."""
    if spare is None:
        return 100
    return min(100, 100 * spare // replicas) if replicas else 0


def steps(
    targets: Mapping[str, Target], apps: Mapping[str, ServeApp], failed_for_s: Mapping[str, float]
) -> Iterator[Deploy | Delete]:
    """What to ask of Serve now. An application that is being deleted is deployed again only once it is gone.

    Args:
        failed_for_s: by application that failed to deploy, seconds since that was first seen.
    """
    for name, running in apps.items():
        unwanted = name not in targets or targets[name].replicas == 0
        if unwanted and running.status != "DELETING":
            yield Delete(name)
    for name, target in targets.items():
        if target.replicas == 0:
            continue
        app = apps.get(name)
        if app is None:
            yield Deploy(name, Version(target.digest))
            continue
        if app.status == "DELETING":
            continue
        version = Version.parse(app.version)
        if version.digest != target.digest:
            yield Deploy(name, Version(target.digest))
        elif app.status == "DEPLOY_FAILED" and failed_for_s.get(name, 0) >= version.retry_s:
            yield Deploy(name, Version(version.digest, version.attempt + 1))
        elif (app.wanted, app.surge_percent, app.adapters) != (target.replicas, target.surge_percent, target.adapters):
            yield Deploy(name, version)
