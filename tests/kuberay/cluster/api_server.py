"""An API server in memory, with what shared objects depend on: uids, resource versions, merge patches.

tests/kubernetes/cluster/test_shared_objects.py holds it, by the same stories, against the real one.
"""

import itertools
import random
import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from kuberay.cluster.errors import Absent, Conflict, Refused

Manifest = dict[str, Any]
Key = tuple[str, str, str]
CLUSTER_WIDE = ("ClusterQueue", "ResourceFlavor", "AdmissionCheck", "ProvisioningRequestConfig", "Namespace")


class ApiServer:
    """What `kuberay.cluster.Cluster` asks, in the namespace `default`."""

    def __init__(self) -> None:
        self.objects: dict[Key, Manifest] = {}
        self.forbidden: set[str] = set()
        """Kinds that the role may not list."""
        self.turn: Callable[[], None] = lambda: None
        """Called before each request."""
        self._count = itertools.count(1)

    def namespace_of(self, manifest: Manifest) -> str:
        return manifest["metadata"].get("namespace") or "default"

    def names(self, kind: str) -> list[str]:
        return sorted(name for found, _, name in self.objects if found == kind)

    def put(self, manifest: Manifest, manager: str = "kubectl-create") -> None:
        """What another program creates."""
        self._store(deepcopy(manifest), manager)

    def drop(self, manifest: Manifest) -> None:
        """What another program deletes."""
        del self.objects[self._key(manifest)]

    def get(self, manifest: Manifest) -> Manifest | None:
        self.turn()
        return deepcopy(self.objects.get(self._key(manifest)))

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, labels: str | None = None, everywhere=False
    ) -> "list[Manifest]":
        self.turn()
        if kind in self.forbidden:
            raise Refused(f"{kind}: not allowed")
        where = namespace or "default"
        return [
            deepcopy(item)
            for (found, there, _), item in self.objects.items()
            if found == kind and (everywhere or there in (where, ""))
        ]

    def apply(self, manifest: Manifest, dry_run: bool = False, force: bool = False) -> Manifest:
        self.turn()
        before, after = self.objects.get(self._key(manifest)), deepcopy(manifest)
        if before is not None:  # the annotations that other requests wrote stay
            kept = before["metadata"].get("annotations") or {}
            after["metadata"]["annotations"] = kept | (after["metadata"].get("annotations") or {})
        bare = after.keys() <= {"apiVersion", "kind", "metadata"} and not after["metadata"].keys() - {
            "name",
            "namespace",
        }
        return after if dry_run else self._store(after, "" if bare else "podslice")  # a name alone has no manager

    def patch(self, live: Manifest, change: Manifest, dry_run: bool = False) -> Manifest:
        self.turn()
        found = self._checked(live, change["metadata"].get("resourceVersion"))
        annotations = (found["metadata"].get("annotations") or {}) | change["metadata"]["annotations"]
        found["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value is not None}
        return self._store(found, "podslice")

    def delete(self, live: Manifest, propagation="Foreground", grace_s=None, unchanged: bool = False) -> bool:
        self.turn()
        try:
            found = self._checked(live, live["metadata"]["resourceVersion"] if unchanged else None)
        except Absent:
            return False
        if found["metadata"]["uid"] != live["metadata"]["uid"]:
            raise Conflict("another uid")
        del self.objects[self._key(live)]
        return True

    def _checked(self, live: Manifest, version: str | None) -> Manifest:
        found = self.objects.get(self._key(live))
        if found is None:
            raise Absent("not found")
        if version not in (None, found["metadata"]["resourceVersion"]):
            raise Conflict("the object has been modified")
        return deepcopy(found)

    def _store(self, manifest: Manifest, manager: str) -> Manifest:
        key, number = self._key(manifest), next(self._count)
        before = self.objects.get(key, {"metadata": {"uid": f"uid-{number}", "managedFields": []}})["metadata"]
        entries = [entry for entry in before["managedFields"] if entry["manager"] != manager]
        server = {"uid": before["uid"], "managedFields": [*entries, *([{"manager": manager}] if manager else [])]}
        same = {name: value for name, value in manifest["metadata"].items() if name not in (*server, "resourceVersion")}
        old = self.objects.get(key)
        manifest["metadata"] = same | server | {"resourceVersion": str(number)}
        if old is not None and old | {"metadata": None} == manifest | {"metadata": None}:
            unversioned = [item["metadata"] | {"resourceVersion": ""} for item in (old, manifest)]
            if unversioned[0] == unversioned[1]:  # a write that changes nothing keeps the version
                return deepcopy(old)
        self.objects[key] = manifest
        return deepcopy(manifest)

    def _key(self, manifest: Manifest) -> Key:
        kind = manifest["kind"]
        return kind, "" if kind in CLUSTER_WIDE else self.namespace_of(manifest), manifest["metadata"]["name"]


def at_once(server: ApiServer, seed: int, *commands: Callable[[], object]) -> list[BaseException]:
    """Runs commands together, one request at a time, in an order that the seed draws; returns what they raised."""
    chance, turns, raised = random.Random(seed), threading.Condition(), list[BaseException]()
    threads: list[threading.Thread] = []
    going: set[threading.Thread] = set()
    whose: list[threading.Thread | None] = [None]

    changes = chance.choice((0.05, 0.2, 0.5))  # long stretches of one command find other gaps than short ones

    def draw() -> None:
        if whose[0] not in going or chance.random() < changes:
            whose[0] = chance.choice(sorted(going, key=lambda thread: thread.name)) if going else None
        turns.notify_all()

    def turn() -> None:
        with turns:
            if threading.current_thread() not in going:
                return
            draw()
            wait()

    def wait() -> None:
        assert turns.wait_for(lambda: whose[0] is threading.current_thread(), 60)

    def run(command: Callable[[], object]) -> None:
        try:
            with turns:
                wait()
            command()
        except BaseException as error:
            raised.append(error)
        finally:
            with turns:
                going.discard(threading.current_thread())
                draw()

    threads += [
        threading.Thread(target=run, args=(command,), name=str(number)) for number, command in enumerate(commands)
    ]
    going.update(threads)
    server.turn = turn
    with turns:
        draw()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.turn = lambda: None
    return raised
