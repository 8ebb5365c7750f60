"""Server-side apply. Every object is dry-run first, so that one rejected object leaves the cluster unchanged."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from kuberay.cluster.connection import MANAGER, Cluster
from kuberay.cluster.delete import delete, wait_until_gone
from kuberay.cluster.errors import Absent, ClusterError, Conflict, Immutable, Interrupted, Refused, WouldStop
from kuberay.cluster.manifests import Manifest, managers, title, without_server_fields
from kuberay.cluster.rollout import plan
from kuberay.cluster.rollout.exposure import RolloutStep
from kuberay.cluster.rollout.ownership import as_admitted, harmless
from kuberay.cluster.rollout.sameness import same
from kuberay.cluster.users import (
    WORKLOADS,
    Users,
    is_noted,
    is_workload,
    note_users,
    overwritten_for,
    shown,
    users_among,
)

GONE_S = 60.0
"""Time that the deletion of an object may take which this config uses too."""
MAX_LOOKS = 5
Say = Callable[[str], None]


@dataclass(frozen=True)
class Applied:
    """What applying one object did, or would do."""

    name: str  # RayService llama3-8b
    outcome: Literal["created", "configured", "unchanged"]
    before: Manifest | None
    after: Manifest
    manifest: Manifest  # as applied: with the fields that Kueue wrote
    force: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.outcome}"


def apply(
    cluster: Cluster,
    objects: Sequence[Manifest],
    dry_run: bool = False,
    force_conflicts: bool = False,
    recreate: bool = False,
    say: Say = lambda line: None,
) -> list[Applied]:
    """Applies the objects in this order, as field manager "podslice".

    `say` receives what will and will not be rolled out before anything changes, then a line for each object. With
    dry_run nothing changes. With recreate, existing workloads are deleted first.

    Raises Refused (Conflict, UnknownKind, Absent, WouldStop), with nothing changed, if an object is rejected or the
    change would stop a service; Interrupted on Ctrl-C; ClusterError on other failures. Once something has changed,
    the error lists which steps are done.
    """
    steps: list[tuple[str, Callable[[], object]]] = []
    applied: list[Applied] = []
    done = 0
    try:
        checked = rehearse(cluster, objects, force_conflicts, recreate)
        rolled_out = [] if recreate else rehearse_rollouts(cluster, checked, say)
        if dry_run:
            for item in checked:
                replaced = recreate and item.before is not None and item.after["kind"] in WORKLOADS
                say(f"{item.name}: deleted and recreated (dry run)" if replaced else f"{item} (dry run)")
            return checked
        if recreate:
            workloads = [item for item in objects if item["kind"] in WORKLOADS]
            steps.append(("deletion of the existing workloads", partial(delete, cluster, workloads, progress=say)))
        shared = [manifest for manifest in objects if not is_workload(manifest)]
        users = users_among(cluster, objects) if shared else {}
        for manifest in objects:
            steps.append((title(manifest), partial(_apply, cluster, manifest, users, force_conflicts, applied, say)))
        if shared:
            steps.append(("a last look at them", partial(_keep, cluster, shared, users, force_conflicts)))
        steps += [(step.title, partial(_run_step, cluster, step, say)) for step in rolled_out]
        for _, action in steps:
            action()
            done += 1
        return applied
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted. {_how_far([name for name, _ in steps], done)}") from None
    except ClusterError as error:
        if not steps:
            raise
        kind = Interrupted if isinstance(error, Interrupted) else ClusterError
        raise kind(f"{error}\n{_how_far([name for name, _ in steps], done)}") from error


def rehearse(
    cluster: Cluster, objects: Sequence[Manifest], force_conflicts: bool = False, recreate: bool = False
) -> list[Applied]:
    """Dry-runs every object on the server. Raises Refused that lists all rejections, not only the first.

    Leaves out what the server cannot check yet: objects in a namespace that is itself about to be created, and, with
    recreate, workloads that must be deleted first.
    """
    made_here = {item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"}
    checked: list[Applied] = []
    refusals: list[Refused] = []
    for manifest in objects:
        try:
            checked.append(item := _rehearse(cluster, manifest, force_conflicts))
            if not force_conflicts:
                _refuse_to_overwrite(cluster, item, objects)
        except Refused as refusal:
            later = isinstance(refusal, Absent) and refusal.namespace in made_here
            replaced = isinstance(refusal, Immutable) and recreate and manifest["kind"] in WORKLOADS
            if not (later or replaced):
                refusals.append(refusal)
    if refusals:
        # Objects of the same missing kind or namespace all fail with the same text.
        words = list(dict.fromkeys(str(refusal) for refusal in refusals))
        raise Refused(
            "\n".join([*words, f"{len(refusals)} of {len(objects)} objects were refused. Nothing was changed."])
        )
    return checked


def _refuse_to_overwrite(cluster: Cluster, item: Applied, objects: Sequence[Manifest]) -> None:
    if item.outcome != "configured" or item.before is None or is_workload(item.after):
        return
    if others := overwritten_for(cluster, item.before, item.after, users_among(cluster, objects)):
        raise Refused(
            f"checking {item.name}: {shown(others)} uses it too, with other values. Use another name or namespace, "
            "or overwrite them for all: --force-conflicts."
        )


def rehearse_rollouts(cluster: Cluster, checked: Sequence[Applied], say: Say) -> list[RolloutStep]:
    """Says how each changed RayService will be rolled out; returns the steps that `apply` must do itself.

    Raises WouldStop if a change would stop a running service.
    """
    steps: list[RolloutStep] = []
    for item in checked:
        if item.after["kind"] != "RayService":
            continue
        rollout = plan(item.before, item.after, partial(_find, cluster, item.after))
        for line in rollout.messages:
            say(f"{item.name}: {line}")
        if rollout.stops:
            raise WouldStop(
                f"{item.name}: {'; '.join(rollout.stops)}. Nothing was changed. Delete and recreate it with "
                "--recreate (minutes of downtime), or let the operator start a new Ray cluster beside the old one: "
                "upgrade=NewCluster() in the config, with free slices for both"
            )
        for step in rollout.steps:
            say(f"{step.title}: {step.words}")
            if step.patch:
                cluster.patch(step.target, step.patch, dry_run=True)
        steps += rollout.steps
    return steps


def _find(cluster: Cluster, beside: Manifest, kind: str, name: str) -> Manifest | None:
    api_version = {"Service": "v1", "RayCluster": "ray.io/v1"}[kind]
    namespace = cluster.namespace_of(beside)
    return cluster.get({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}})


def _rehearse(cluster: Cluster, manifest: Manifest, force: bool) -> Applied:
    before = cluster.get(manifest)
    if before is not None and before["metadata"].get("deletionTimestamp"):
        if is_workload(before) or before["metadata"].get("finalizers") != ["foregroundDeletion"]:
            advice = "apply again when it is gone; --recreate waits for that"
            raise Immutable(f"checking {title(manifest)}: it is being deleted, and the change would be lost: {advice}")
        wait_until_gone(cluster, [before], GONE_S, lambda line: None)  # a moment: another config was its last user
        before = cluster.get(manifest)
    manifest = as_admitted(manifest, before)
    written_back = False
    try:
        after = cluster.apply(manifest, dry_run=True, force=force)
    except Conflict as conflict:
        if before is None or not conflict.managers:
            raise
        after = cluster.apply(manifest, dry_run=True, force=True)
        if not harmless(conflict.managers, before, after):
            raise
        force = written_back = True
    if before is None:
        return Applied(title(manifest), "created", before, after, manifest, force)
    was, will = without_server_fields(before), without_server_fields(after)
    unchanged = was == will or (written_back and same(was, will))
    return Applied(title(manifest), "unchanged" if unchanged else "configured", before, after, manifest, force)


def _apply(cluster: Cluster, manifest: Manifest, users: Users, force: bool, applied: list[Applied], say: Say) -> None:
    item = _rehearse(cluster, manifest, force)  # again: objects applied before it may change the result
    notes = {} if is_workload(manifest) else users
    if item.before is not None:
        note_users(cluster, item.before, notes, found=True)  # first: a delete at the same time then leaves it alone
    # Where only the spelling differs and we own the fields already, keep the operator's spelling.
    if item.outcome != "unchanged" or MANAGER not in managers(item.before or {}):
        note_users(cluster, cluster.apply(item.manifest, force=item.force), notes, found=False)
    applied.append(item)
    say(str(item))


def _keep(cluster: Cluster, shared: Sequence[Manifest], users: Users, force: bool) -> None:
    """Applies again what a delete of another config has removed meanwhile, not knowing of a workload yet to come."""
    for manifest in shared:
        for _ in range(MAX_LOOKS):
            live = cluster.get(manifest)
            if is_noted(live, users):
                break
            if live is not None and "deletionTimestamp" in live["metadata"]:
                wait_until_gone(cluster, [live], GONE_S, lambda line: None)
            _apply(cluster, manifest, users, force, [], lambda line: None)


def _run_step(cluster: Cluster, step: RolloutStep, say: Say) -> None:
    if step.patch:
        cluster.patch(step.target, step.patch)
        say(f"{step.title}: patched")
        return
    live = cluster.get(step.target)
    if live is not None and cluster.delete(live, propagation="Background"):
        wait_until_gone(cluster, [live], 300, say)
    with suppress(Conflict):  # the operator created it first
        cluster.create(step.target)
    say(f"{step.title}: recreated")


def _how_far(names: Sequence[str], done: int) -> str:
    if not names:
        return "Nothing was changed."
    return (
        f"Done: {', '.join(names[:done]) or 'nothing'}. "
        f"In progress, possibly done: {', '.join(names[done : done + 1]) or 'nothing'}. "
        f"Not done: {', '.join(names[done + 1 :]) or 'nothing else'}. "
        "Applying again is safe: what is already applied stays as it is."
    )
