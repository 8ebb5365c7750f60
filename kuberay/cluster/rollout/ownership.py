"""Whose a field is: server-side apply refuses to change what somebody else has set. What only looks so is settled here.

Three others write into what we apply. The operator writes a RayService back when it adds its finalizer, with defaults
spelled out, and so owns the whole list of worker groups; it decides nothing there. Kueue writes what admission brings:
`suspend`, and node selectors and tolerations of Pod templates; they stay. A person's change is never taken back.
"""

from collections.abc import Iterator
from copy import deepcopy

from kuberay.cluster.manifests import Manifest, labels, without_server_fields
from kuberay.cluster.rollout.sameness import same
from ray_configs.labels import QUEUE

OPERATOR, KUEUE = "kuberay-operator", "kueue"


def settled(managers: frozenset[str], live: Manifest, after: Manifest) -> bool:
    """Whether a conflict with these managers is none: they decide nothing there, or mean what is asked for.

    `live` is the object with their values, `after` what it would be with ours.
    """
    writers = {OPERATOR, KUEUE} if QUEUE in labels(live) else {OPERATOR}
    return managers <= writers or same(without_server_fields(live), without_server_fields(after))


def as_admitted(manifest: Manifest, live: Manifest | None) -> Manifest:
    """The manifest with what Kueue wrote into the live object: nothing else of it is for anyone to keep."""
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
