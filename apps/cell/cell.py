"""Reconciles the cell every second: compares its desired state with what Ray Serve runs, and asks for the difference.

    observe Serve -> assign slices -> compute the difference -> ask Serve for it

The loop keeps no state that matters: a restarted cell observes Serve and goes on.
"""

import logging
import re
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from apps.cell.admin import Admin
from apps.cell.calls import Entry
from apps.cell.desired import acl
from apps.cell.desired.state import Published
from apps.cell.names import split
from apps.cell.reconcile import Delete, ServeApp, Target, Version, assign, steps, surge_percent
from apps.cell.rounds import Failures
from apps.cell.serve_apps import ServeApps, config_digest
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig

log = logging.getLogger("podslice")

EXCEPTION = re.compile(r"^[\w.]+(Error|Exception|Exit|Interrupt|Failed|Missing)\b", re.MULTILINE)
"""The line of a traceback that names the exception."""
ERROR = "Error:\n"
"""What Serve writes before a traceback."""
REASON_CHARACTERS = 1000


@dataclass
class LastRound:
    """What the last round of the reconcile loop found."""

    models: dict[str, Published] = field(default_factory=dict)
    apps: dict[str, ServeApp] = field(default_factory=dict)
    assigned: dict[str, int] = field(default_factory=dict)
    unservable: dict[str, str] = field(default_factory=dict)
    """By model: why this version and config of the cell cannot serve it, though it is published."""


class CellReconciler:
    """The body of the reconcile loop, and the models' state as clients see it."""

    def __init__(self, config: CellConfig, admin: Admin, apps: ServeApps, failures: Failures | None = None):
        self._failures = failures or Failures()
        self._config, self._admin, self._apps = config, admin, apps
        self._failed_since: dict[str, float] = {}
        self._reasons: dict[str, tuple[str, str]] = {}
        """By model that does not load: the digest of its config, and why. Serve tells only between two attempts."""
        self.seen = LastRound()

    @property
    def slices(self) -> int | None:
        """Number of slices that the cell may use; None: it runs on CPUs, as many as Ray has."""
        return self._config.max_replicas if self._config.slice is not None else None

    def reconcile(self) -> None:
        """Run one round. Blocks."""
        models = self._admin.state.models
        apps = self._apps.observe()
        servable, unservable = self._servable(models)
        placed = {name: apps[name].wanted for name in servable if name in apps and apps[name].status != "DELETING"}
        assigned = assign({name: models[name] for name in servable}, self.slices, placed)
        self.seen = LastRound(models, apps, assigned, unservable)
        self._note_failures(apps)
        spare = None if self.slices is None else self.slices - sum(assigned.values())
        targets = {
            name: Target(
                config_digest(config),
                assigned[name],
                surge_percent(assigned[name], spare),
                self._admin.registry.adapters(models[name]),
            )
            for name, config in servable.items()
        }
        now = time.monotonic()
        failed_for_s = {name: now - since for name, since in self._failed_since.items()}
        # Models that this config can no longer serve are left running as they are.
        ours = {name: app for name, app in apps.items() if name not in unservable}
        for step in steps(targets, ours, failed_for_s):
            # What Serve refuses for one model is tried again in the next round, and the others go on.
            if isinstance(step, Delete):
                with self._failures.noting(f"{step.name} cannot be unloaded"):
                    self._apps.delete(step.name)
                    log.info("unloading %s", step.name)
                continue
            target = targets[step.name]
            with self._failures.noting(_not_loaded(step.name)):
                self._apps.deploy(step.name, servable[step.name], step.version, target)
                log.info("loading %s: %d replicas, version %s", step.name, target.replicas, step.version)

    def entry(self, name: str, model: Published) -> Entry:
        """One model as listcell shows it, or one of its adapters, which runs on its replicas."""
        full_name = name
        name, adapter = split(full_name)
        app = self.seen.apps.get(name)
        state, reason = self._state(name, model, app)
        active, path = app.active if app else 0, model.model_path
        if adapter:
            path = model.adapters[adapter].model_path
            if active and not self._told(name, model, adapter):
                state, active = "LOADING", 0
            elif active and app and app.adapter_refusals.get(adapter):
                state, active, reason = "FAILED", 0, app.adapter_refusals[adapter]
        return {
            "model": full_name,
            "model_path": path,
            "checkpoint": path if adapter else model.checkpoint or path,
            "max_replicas": model.replicas,
            "active_replicas": active,
            "assigned_replicas": self.seen.assigned.get(name, 0),
            "state": state,
            "reason": reason,
            "overrides": model.overrides,
            "methods": list(acl.METHODS),
            "acls": model.acls,
            "admin_acl": model.admin_acl,
            "published_at": model.published_at,
            "replicas": [asdict(each) for each in (app.replicas if app else ())],
        }

    def _told(self, name: str, model: Published, adapter: str) -> bool:
        """Whether all replicas of a model have loaded the adapter, or one has refused it."""
        app = self.seen.apps.get(name)
        if app is None or adapter not in app.adapter_refusals:
            return False
        wanted = None if name in self.seen.unservable else self._admin.registry.adapters(model).get(adapter)
        return app.adapters.get(adapter) == wanted

    def unloading(self) -> list[str]:
        """Unpublished models whose replicas are still finishing their requests."""
        return [name for name in self.seen.apps if name not in self._admin.state.models]

    def _servable(self, models: dict[str, Published]) -> tuple[dict[str, LLMConfig], dict[str, str]]:
        configs, refusals = {}, {}
        for name, model in models.items():
            try:
                config = self._admin.registry.config(name, model)
                self._admin.registry.adapters(model)
                configs[name] = config
            except Exception as error:  # it was published under another config or version of the cell
                refusals[name] = str(error)
        return configs, refusals

    def _note_failures(self, apps: dict[str, ServeApp]) -> None:
        now = time.monotonic()
        self._failed_since = {
            name: self._failed_since.get(name, now) for name, app in apps.items() if app.status == "DEPLOY_FAILED"
        }
        self._reasons = {name: told for name, app in apps.items() if (told := self._reason(name, app))}

    def _reason(self, name: str, app: ServeApp) -> tuple[str, str] | None:
        """The reason to remember of an application: the last one, until its replicas run or it has another config."""
        digest, before = Version.parse(app.version).digest, self._reasons.get(name)
        known = before if before is not None and before[0] == digest else None
        if told := _failure(app):
            # An exception says more than Serve's count of attempts.
            return (digest, told) if known is None or ERROR in app.message else known
        healed = app.status in ("RUNNING", "DELETING") or (app.active and app.active >= app.wanted)
        return None if healed else known

    def _state(self, name: str, model: Published, app: ServeApp | None) -> tuple[str, str | None]:
        if name in self.seen.unservable:
            return "FAILED", self.seen.unservable[name]
        given = self.seen.assigned.get(name, 0)
        waits = None
        if name in self.seen.assigned and given < model.replicas:
            waits = f"{given} of {model.replicas} replicas have a slice; all {self.slices} of the cell are assigned"
        if app is None and (refusal := self._failures.current.get(_not_loaded(name))):
            return "FAILED", refusal
        if app is None or app.status == "DELETING":
            return ("WAITING" if model.replicas else "LOADED"), waits
        _, reason = self._reasons.get(name, ("", None))
        reason = reason or _failure(app)
        updating = app.status == "DEPLOYING" or _served(self.seen.models.get(name)) != _served(model)
        if app.active >= model.replicas and updating and app.active:
            return "UPDATING", reason
        if app.active >= model.replicas:
            return "LOADED", reason if app.status == "DEPLOY_FAILED" else None
        # Serve's message about a replica that it cannot place is worth showing too.
        waits = waits or app.message.strip() or None
        if app.active:
            return "PARTLY_LOADED", reason or waits
        return ("FAILED", reason) if reason else ("LOADING", waits)


def _not_loaded(name: str) -> str:
    return f"{name} cannot be loaded"


def _served(model: Published | None) -> tuple[Any, ...] | None:
    """The fields that a model's replicas depend on."""
    return (
        None if model is None else (model.model_path, model.checkpoint, model.overrides, model.replicas, model.adapters)
    )


def _failure(app: ServeApp) -> str | None:
    """Why replicas did not start, as Serve reports it; None while nothing has failed.

    A traceback is cut to its first line (Serve's) and the exception; the rest is in the replica's log.
    """
    failed = app.status in ("DEPLOY_FAILED", "UNHEALTHY") or "failed" in app.message
    if not failed or not app.message.strip():
        return None
    told, traced, trace = app.message.strip().partition(ERROR)
    if not traced:
        return told
    exceptions = [match.start() for match in EXCEPTION.finditer(trace)]
    return f"{told.strip()} {trace[exceptions[-1] if exceptions else 0 :].strip()[:REASON_CHARACTERS]}"
