"""What an API server keeps: objects with their versions, owners and finalizers, and the changes that watches read."""

import json
import re
import threading
import uuid
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import field_ownership

Manifest = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace ("" for what is cluster-wide), name


class Failure(Exception):
    """Comes out as a Status object."""

    def __init__(self, code: int, reason: str, message: str, **details: Any):
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details


@dataclass(frozen=True)
class Kind:
    group_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        return self.group_version.rpartition("/")[0]

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


CORE = (
    Kind("v1", "Namespace", "namespaces", False),
    Kind("v1", "Node", "nodes", False),
    Kind("v1", "Pod", "pods"),
    Kind("v1", "Service", "services"),
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("v1", "Secret", "secrets"),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "Event", "events"),
    Kind("batch/v1", "Job", "jobs"),
)
RAY = (
    Kind("ray.io/v1", "RayService", "rayservices"),
    Kind("ray.io/v1", "RayJob", "rayjobs"),
    Kind("ray.io/v1", "RayCluster", "rayclusters"),
)
KUEUE = (
    Kind("kueue.x-k8s.io/v1beta1", "Workload", "workloads"),
    Kind("kueue.x-k8s.io/v1beta1", "ClusterQueue", "clusterqueues", False),
)
MONITORING = (Kind("monitoring.googleapis.com/v1", "PodMonitoring", "podmonitorings"),)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ObjectStore:
    """Methods may be called by any thread; `changed` is notified of each change."""

    def __init__(self, kinds: tuple[Kind, ...]):
        self.kinds = kinds
        self.changed = threading.Condition(threading.RLock())
        self.admission: list[Callable[[Manifest], str | None]] = []  # each may give a reason to deny
        self.history: list[tuple[int, str, Key, Manifest]] = []
        self.version = 100
        self.oldest = 0  # watches from before this version get 410
        self._objects: dict[Key, Manifest] = {}
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})

    # What a request does.

    def kind(self, group_version: str, plural: str) -> Kind:
        for kind in self.kinds:
            if (kind.group_version, kind.plural) == (group_version, plural):
                return kind
        raise Failure(404, "NotFound", "the server could not find the requested resource")

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        with self.changed:
            found = self._objects.get((kind.plural, namespace, name))
            if found is None:
                message = f'{kind.qualified} "{name}" not found'
                raise Failure(404, "NotFound", message, name=name, group=kind.group, kind=kind.plural)
            return deepcopy(found)

    def list(self, kind: Kind, namespace: str, labels: str, fields: str) -> tuple[list[Manifest], int]:
        with self.changed:
            found = [
                deepcopy(item)
                for key, item in sorted(self._objects.items())
                if matches(key, item, kind, namespace, labels, fields)
            ]
            return found, self.version

    def apply(
        self, kind: Kind, namespace: str, name: str, wanted: Manifest, manager: str, force: bool, dry_run: bool
    ) -> tuple[Manifest, bool]:
        """Also whether it was created."""
        with self.changed:
            self._need_namespace(kind, namespace)
            key = (kind.plural, namespace, name)
            live = self._objects.get(key)
            base = live or self._new(kind, namespace, name)
            try:
                merged = field_ownership.apply(base, wanted, manager, force, now())
            except field_ownership.ApplyConflict as conflict:
                causes = [
                    {"reason": "FieldManagerConflict", "message": message, "field": field}
                    for message, field in conflict.causes
                ]
                message = f"Apply failed with {len(causes)} conflict{'s' * (len(causes) > 1)}: {causes[0]['message']}"
                raise Failure(409, "Conflict", message, causes=causes) from None
            self._admit(merged)
            return self._store(key, live, merged, dry_run), live is None

    def create(self, kind: Kind, namespace: str, manifest: Manifest, manager: str, dry_run: bool) -> Manifest:
        with self.changed:
            self._need_namespace(kind, namespace)
            name = manifest["metadata"]["name"]
            key = (kind.plural, namespace, name)
            if key in self._objects:
                raise Failure(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists')
            base = self._new(kind, namespace, name)
            wanted = manifest | {"metadata": base["metadata"] | manifest["metadata"]}
            merged = field_ownership.update(base, wanted, manager, "", now())
            self._admit(merged)
            return self._store(key, None, merged, dry_run)

    def replace(
        self, kind: Kind, namespace: str, name: str, manifest: Manifest, manager: str, subresource: str, dry_run: bool
    ) -> Manifest:
        with self.changed:
            live = self.get(kind, namespace, name)
            version = manifest["metadata"].get("resourceVersion")
            if version not in (None, live["metadata"]["resourceVersion"]):
                raise Failure(409, "Conflict", "the object has been modified; please apply your changes to it")
            wanted = live | {"status": manifest.get("status", {})} if subresource else deepcopy(manifest)
            if not subresource:
                for field in ("uid", "creationTimestamp", "generation", "deletionTimestamp"):
                    if field in live["metadata"]:
                        wanted["metadata"][field] = live["metadata"][field]
            merged = field_ownership.update(live, wanted, manager, subresource, now())
            stored = self._store((kind.plural, namespace, name), live, merged, dry_run)
            self._collect()
            return stored

    def delete(self, kind: Kind, namespace: str, name: str, options: Manifest, dry_run: bool) -> None:
        with self.changed:
            live = self.get(kind, namespace, name)
            uid = (options.get("preconditions") or {}).get("uid")
            if uid not in (None, live["metadata"]["uid"]):
                raise Failure(409, "Conflict", f"the UID in the precondition ({uid}) does not match")
            if not dry_run:
                self._delete((kind.plural, namespace, name), options.get("propagationPolicy") == "Foreground")
                self._collect()

    # What the rest of the cluster does: controllers, kubelets and people, in one call each.

    def put(self, manifest: Manifest, manager: str = "someone") -> Manifest:
        """Creates it, or replaces it with its status."""
        kind = self._kind_of(manifest)
        namespace = manifest["metadata"].get("namespace", "default") if kind.namespaced else ""
        with self.changed:
            key = (kind.plural, namespace, manifest["metadata"]["name"])
            live = self._objects.get(key)
            base = deepcopy(live or self._new(kind, namespace, key[2]))
            wanted = deepcopy(manifest) | {"metadata": base["metadata"] | deepcopy(manifest["metadata"])}
            stored = self._store(key, live, field_ownership.update(base, wanted, manager, "", now()), False)
            self._collect()
            return stored

    def change(self, manifest: Manifest, manager: str = "someone", **parts: Any) -> Manifest:
        """Sets top-level parts (status=..., spec=...) of what is there."""
        kind = self._kind_of(manifest)
        namespace = manifest["metadata"].get("namespace", "default") if kind.namespaced else ""
        with self.changed:
            live = self.get(kind, namespace, manifest["metadata"]["name"])
            return self.put(live | deepcopy(parts), manager)

    def remove(self, manifest: Manifest) -> None:
        kind = self._kind_of(manifest)
        namespace = manifest["metadata"].get("namespace", "default") if kind.namespaced else ""
        self.delete(kind, namespace, manifest["metadata"]["name"], {}, False)

    def find(self, kind: str, name: str, namespace: str = "default") -> Manifest | None:
        found = next(item for item in self.kinds if item.kind == kind)
        with self.changed:
            live = self._objects.get((found.plural, namespace if found.namespaced else "", name))
            return deepcopy(live)

    def forget(self) -> None:
        """Compaction: whoever watched from before now must list again."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.changed.notify_all()

    def _kind_of(self, manifest: Manifest) -> Kind:
        named = (manifest["apiVersion"], manifest["kind"])
        return next(kind for kind in self.kinds if (kind.group_version, kind.kind) == named)

    def _need_namespace(self, kind: Kind, namespace: str) -> None:
        if kind.namespaced and ("namespaces", "", namespace) not in self._objects:
            message = f'namespaces "{namespace}" not found'
            raise Failure(404, "NotFound", message, name=namespace, kind="namespaces")

    def _new(self, kind: Kind, namespace: str, name: str) -> Manifest:
        metadata = {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 0}
        if namespace:
            metadata["namespace"] = namespace
        return {"apiVersion": kind.group_version, "kind": kind.kind, "metadata": metadata}

    def _admit(self, manifest: Manifest) -> None:
        for hook in self.admission:
            if reason := hook(manifest):
                raise Failure(400, "BadRequest", f'admission webhook "hook.test" denied the request: {reason}')

    def _store(self, key: Key, live: Manifest | None, merged: Manifest, dry_run: bool) -> Manifest:
        if live is not None and live == merged:
            return deepcopy(live)
        if live is None or live.get("spec") != merged.get("spec"):
            merged["metadata"]["generation"] += 1
        if not dry_run:
            self.version += 1
            merged["metadata"]["resourceVersion"] = str(self.version)
            self._objects[key] = deepcopy(merged)
            self._record("ADDED" if live is None else "MODIFIED", key, merged)
        return merged

    def _record(self, type_: str, key: Key, item: Manifest) -> None:
        self.history.append((self.version, type_, key, deepcopy(item)))
        self.changed.notify_all()

    def _delete(self, key: Key, foreground: bool) -> None:
        live = self._objects[key]
        metadata = live["metadata"]
        dependents = self._dependents(metadata["uid"])
        if foreground and dependents:
            metadata.setdefault("finalizers", []).append("foregroundDeletion")
        if metadata.get("finalizers"):
            metadata["deletionTimestamp"] = now()
            self.version += 1
            metadata["resourceVersion"] = str(self.version)
            self._record("MODIFIED", key, live)
        else:
            self._remove(key)
        for dependent in dependents:
            if dependent in self._objects:
                self._delete(dependent, foreground)

    def _dependents(self, uid: str) -> "list[Key]":
        return [
            key
            for key, item in self._objects.items()
            if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", []))
        ]

    def _remove(self, key: Key) -> None:
        item = self._objects.pop(key)
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._record("DELETED", key, item)

    def _collect(self) -> None:
        """The garbage collector: what is being deleted goes when its last finalizer has."""
        found = True
        while found:
            found = False
            for key, item in [*self._objects.items()]:
                metadata = item["metadata"]
                waits = metadata.get("finalizers", [])
                if "foregroundDeletion" in waits and not self._dependents(metadata["uid"]):
                    waits.remove("foregroundDeletion")
                if "deletionTimestamp" in metadata and not waits:
                    self._remove(key)
                    found = True


def matches(key: Key, item: Manifest, kind: Kind, namespace: str, labels: str, fields: str) -> bool:
    if key[0] != kind.plural or (namespace and key[1] != namespace):
        return False
    own = item["metadata"].get("labels", {})
    for term in re.split(r",(?![^(]*\))", labels) if labels else []:
        if choice := re.fullmatch(r"\s*(\S+) in \((.*)\)\s*", term):
            if own.get(choice[1]) not in choice[2].split(","):
                return False
        elif "=" in term:
            name, value = term.replace("==", "=").split("=")
            if own.get(name) != value:
                return False
        elif term.strip() not in own:
            return False
    for term in fields.split(",") if fields else []:
        name, value = term.split("=")
        if str(field_ownership.read(item, tuple(name.split(".")))) != value:
            return False
    return True


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()
