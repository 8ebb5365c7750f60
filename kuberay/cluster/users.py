"""Who uses an object that several configs may render under one name: a ServiceAccount, a queue, a Namespace.

Every workload that was applied with an object has an annotation of its own there. A merge patch writes it, so that two
commands at once cannot lose each other's; server-side apply, by us or by kubectl, leaves it alone. The rendered
manifest does not contain it.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from kuberay.cluster.connection import MANAGER, Cluster
from kuberay.cluster.errors import Absent, Refused, UnknownKind
from kuberay.cluster.manifests import Manifest, annotations, labels, managers, without_server_fields

WORKLOADS = ("RayService", "RayJob", "RayCluster", "Job")
USED_BY = "podslice/used-by-"
"""Annotations of users: USED_BY and a hash, with the user as value."""
WAS_THERE = "podslice/was-there-before"
"""Annotation of an object that podslice found and did not make: it is never deleted."""
MANAGED_BY = "app.kubernetes.io/managed-by"

Users = dict[str, str]
"""Annotations of users: a workload as `ray.io/v1 RayService namespace/name`, or another text."""
ITSELF: Users = {f"{USED_BY}itself": "a manifest without a workload"}


def is_workload(manifest: Manifest) -> bool:
    """Whether it is something that runs: it uses the other objects, and belongs to its config alone."""
    return manifest["kind"] in WORKLOADS or _has_containers(manifest)


def users_among(cluster: Cluster, applied: Sequence[Manifest]) -> Users:
    """The workloads among objects that are applied or deleted together: they use all the others."""
    found: Users = {}
    for item in filter(is_workload, applied):
        user = f"{item['apiVersion']} {item['kind']} {cluster.namespace_of(item)}/{item['metadata']['name']}"
        found[USED_BY + hashlib.sha256(user.encode()).hexdigest()[:16]] = user
    return found or ITSELF


def noted_users(live: Manifest) -> Users:
    """The users that a live object knows."""
    return {key: value for key, value in annotations(live).items() if key.startswith(USED_BY)}


def note_users(cluster: Cluster, live: Manifest, users: Users, found: bool) -> None:
    """Writes users on a live object, found there or just made. Does nothing if it knows them, or has gone."""
    wanted = dict(users)
    if (
        users
        and found
        and not noted_users(live)
        and MANAGER not in managers(live)
        and labels(live).get(MANAGED_BY) != MANAGER
    ):
        wanted[WAS_THERE] = "true"
    missing = {key: value for key, value in wanted.items() if key not in annotations(live)}
    if missing:
        try:
            cluster.patch(live, {"metadata": {"annotations": missing}})
        except Absent:
            return


def is_noted(live: Manifest | None, users: Users) -> bool:
    """Whether a live object is there to stay and knows the users."""
    return live is not None and "deletionTimestamp" not in live["metadata"] and users.keys() <= noted_users(live).keys()


def is_there(cluster: Cluster, user: str) -> bool:
    """Whether a user still exists and is not being deleted, as far as this role may see."""
    parts = re.fullmatch(r"(\S+) (\S+) ([^/\s]+)/([^/\s]+)", user)
    if parts is None:  # a newer version may have written it
        return True
    api, kind, namespace, name = parts.groups()
    try:
        live = cluster.get({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace}})
    except UnknownKind:  # without the kind there are no objects of it
        return False
    except Refused:  # this role may not look there
        return True
    return live is not None and "deletionTimestamp" not in live["metadata"]


def shown(users: Users) -> str:
    """The users for a message: `RayService default/llama`, without the API's version."""
    return ", ".join(re.sub(r"^\S+/\S+ (?=\S+ \S+/)", "", user) for user in users.values())


def overwritten_for(cluster: Cluster, before: Manifest, after: Manifest, users: Users) -> Users:
    """The other users of a live object, if applying would change or remove a value that they may rely on."""
    if not _overwrites(without_server_fields(before), without_server_fields(after)):
        return {}
    others = {key: user for key, user in noted_users(before).items() if key not in users}
    return {key: user for key, user in others.items() if is_there(cluster, user)}


def _overwrites(before: Any, after: Any) -> bool:
    if isinstance(before, dict) and isinstance(after, dict):
        return any(key not in after or _overwrites(value, after[key]) for key, value in before.items())
    return bool(before != after)


def _has_containers(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_containers, value))
    return isinstance(value, dict) and ("containers" in value or any(map(_has_containers, value.values())))
