"""Field ownership: which conflicts of server-side apply are harmless, and which fields of others to keep.

The operator writes a RayService back when it adds its finalizer, with defaults filled in, and so becomes the manager of
the whole list of worker groups without having decided anything there. Kueue sets `suspend` and the Pod templates' node
selectors and tolerations on admission; these are kept. A person's change is never reverted.
"""

from collections.abc import Iterator
from copy import deepcopy

from kuberay.cluster.manifests import Manifest, labels, without_server_fields
from kuberay.cluster.rollout.sameness import same
from ray_configs.cluster.labels import QUEUE

OPERATOR, KUEUE = "kuberay-operator", "kueue"


def harmless(managers: frozenset[str], live: Manifest, after: Manifest) -> bool:
    """Whether a conflict with these managers can be ignored: only controllers, or values that mean the same.

    `live` is the object with their values, `after` with ours.
    """
    writers = {OPERATOR, KUEUE} if QUEUE in labels(live) else {OPERATOR}
    return managers <= writers or same(without_server_fields(live), without_server_fields(after))


def as_admitted(manifest: Manifest, live: Manifest | None) -> Manifest:
    """The manifest with the fields that Kueue wrote into the live object on admission."""
    if live is None or QUEUE not in labels(live):
        return manifest
    kept = deepcopy(manifest)
    wanted, found = kept["spec"], live["spec"]
    for ours, theirs in ((wanted, found), (wanted.get("rayClusterConfig"), found.get("rayClusterConfig"))):
        if ours is not None and theirs is not None and "suspend" in theirs:
            ours["suspend"] = theirs["suspend"]
    admitted = dict(_templates(live))
    for name, template in _templates(kept):
        if name in admitted:
            _keep(template, admitted[name])
    return kept


def _templates(manifest: Manifest) -> Iterator[tuple[str, Manifest]]:
    spec = manifest["spec"]
    if "template" in spec:
        yield "", spec["template"]
    cluster = spec.get("rayClusterConfig") or spec.get("rayClusterSpec") or spec
    if "headGroupSpec" in cluster:
        yield "head", cluster["headGroupSpec"]["template"]
    for group in cluster.get("workerGroupSpecs") or []:
        yield f"group {group['groupName']}", group["template"]


def _keep(ours: Manifest, theirs: Manifest) -> None:
    for part, fields in (("metadata", ("labels", "annotations")), ("spec", ("nodeSelector", "tolerations"))):
        for field in fields:
            added = (theirs.get(part) or {}).get(field)
            mine = (ours.get(part) or {}).get(field)
            if isinstance(added, dict):
                ours.setdefault(part, {})[field] = added | (mine or {})
            elif added:
                ours.setdefault(part, {})[field] = [
                    *(mine or []),
                    *(item for item in added if item not in (mine or [])),
                ]
