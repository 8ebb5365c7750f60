"""Server-side apply of all objects: first as a dry run of every one, so that a refused object changes nothing."""

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
from kuberay.cluster.rollout.ownership import as_admitted, settled
from kuberay.cluster.rollout.sameness import same

WORKLOADS = ("RayService", "RayJob", "RayCluster", "Job")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Applied:
    """What applying one object did, or would do."""

    name: str  # RayService llama3-8b
    outcome: Literal["created", "configured", "unchanged"]
    before: Manifest | None
    after: Manifest
    manifest: Manifest  # with what others are meant to have written into it
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
    """Makes the cluster's objects be as these say, in this order, as field manager "podslice".

    `say` hears what a change will and will not bring about before it is made, and of each object at once. With
    dry_run, says what would happen and changes nothing. With recreate, workloads that are there are deleted first.

    Raises Refused (Conflict, UnknownKind, Absent, WouldStop) with nothing changed if an object is rejected, or if
    the change would stop a service, Interrupted on Ctrl-C and ClusterError on other failures; after a change, their
    text says how far it came.
    """
    steps: list[tuple[str, Callable[[], object]]] = []
    applied: list[Applied] = []
    done = 0
    try:
        checked = rehearse(cluster, objects, force_conflicts, recreate)
        rolled_out = [] if recreate else rehearse_rollouts(cluster, checked, say)
        if dry_run:
            for item in checked:
                anew = recreate and item.before is not None and item.after["kind"] in WORKLOADS
                say(f"{item.name}: deleted and made anew (dry run)" if anew else f"{item} (dry run)")
            return checked
        if recreate:
            there = [item for item in objects if item["kind"] in WORKLOADS]
            steps.append(("the deletion of what is there", partial(delete, cluster, there, progress=say)))
        for manifest in objects:
            steps.append((title(manifest), partial(_apply, cluster, manifest, force_conflicts, applied, say)))
        steps += [(step.title, partial(_take, cluster, step, say)) for step in rolled_out]
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
    """What applying would do to each object, asked of the server. Raises Refused with every refusal, not the first.

    Objects that go into a namespace which is itself among the objects, and not there yet, cannot be asked about: they
    are left out, and so is what must be deleted first.
    """
    made_here = {item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"}
    checked: list[Applied] = []
    refusals: list[Refused] = []
    for manifest in objects:
        try:
            checked.append(_rehearse(cluster, manifest, force_conflicts))
        except Refused as refusal:
            later = isinstance(refusal, Absent) and refusal.namespace in made_here
            anew = isinstance(refusal, Immutable) and recreate and manifest["kind"] in WORKLOADS
            if not (later or anew):
                refusals.append(refusal)
    if refusals:
        # Objects of one kind that is not installed, or one namespace that is not there, fail alike.
        words = list(dict.fromkeys(str(refusal) for refusal in refusals))
        raise Refused(
            "\n".join([*words, f"{len(refusals)} of {len(objects)} objects were refused. Nothing was changed."])
        )
    return checked


def rehearse_rollouts(cluster: Cluster, checked: Sequence[Applied], say: Say) -> list[RolloutStep]:
    """What becomes of each changed RayService, said before it happens, and what is left to do about it.

    Raises WouldStop for one that it would stop.
    """
    steps: list[RolloutStep] = []
    for item in checked:
        if item.after["kind"] != "RayService":
            continue
        rollout = plan(item.before, item.after, partial(_find, cluster, item.after))
        for line in rollout.said:
            say(f"{item.name}: {line}")
        if rollout.stops:
            raise WouldStop(
                f"{item.name}: {'; '.join(rollout.stops)}. Nothing was changed. Delete it and make it anew with "
                "--recreate (it is away for minutes), or let the operator put a new Ray cluster beside the old one: "
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
        advice = "apply it when it is gone; --recreate waits for that"
        raise Immutable(f"checking {title(manifest)}: it is being deleted, and would take the change along: {advice}")
    manifest = as_admitted(manifest, before)
    written_back = False
    try:
        after = cluster.apply(manifest, dry_run=True, force=force)
    except Conflict as conflict:
        if before is None or not conflict.managers:
            raise
        after = cluster.apply(manifest, dry_run=True, force=True)
        if not settled(conflict.managers, before, after):
            raise
        force = written_back = True
    if before is None:
        return Applied(title(manifest), "created", before, after, manifest, force)
    was, will = without_server_fields(before), without_server_fields(after)
    unchanged = was == will or (written_back and same(was, will))
    return Applied(title(manifest), "unchanged" if unchanged else "configured", before, after, manifest, force)


def _apply(cluster: Cluster, manifest: Manifest, force: bool, applied: list[Applied], say: Say) -> None:
    item = _rehearse(cluster, manifest, force)  # again: since the first time, objects before it were made
    # What differs in spelling alone is ours already, and is left as the operator spells it.
    if item.outcome != "unchanged" or MANAGER not in managers(item.before or {}):
        cluster.apply(item.manifest, force=item.force)
    applied.append(item)
    say(str(item))


def _take(cluster: Cluster, step: RolloutStep, say: Say) -> None:
    if step.patch:
        cluster.patch(step.target, step.patch)
        say(f"{step.title}: patched")
        return
    live = cluster.get(step.target)
    if live is not None and cluster.delete(live, propagation="Background"):
        wait_until_gone(cluster, [live], 300, say)
    with suppress(Conflict):  # the operator was quicker
        cluster.create(step.target)
    say(f"{step.title}: made anew")


def _how_far(names: Sequence[str], done: int) -> str:
    if not names:
        return "Nothing was changed."
    return (
        f"Done: {', '.join(names[:done]) or 'nothing'}. "
        f"Under way, perhaps done: {', '.join(names[done : done + 1]) or 'nothing'}. "
        f"Not done: {', '.join(names[done + 1 :]) or 'nothing else'}. "
        "Applying again is safe: what is there already stays as it is."
    )
