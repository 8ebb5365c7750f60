"""Merges what a config adds to Pods and containers into the rendered ones, as `kubectl patch` (strategic merge) would.

Mappings are merged, None deletes a field, and the items of these lists are matched by their key. Other lists replace
what was there, except tolerations, which are added: without those of its slice a Pod would fit no node.
"""

from typing import Any

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "claims": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""Kubernetes' own patch merge keys of the lists in a Pod. A test holds them against its schemas."""
ONE_OF = ("volumes", "env")
"""Lists whose items have one source: an item that names another loses the first."""


def merged(base: Any, overlay: Any, field: str = "") -> Any:
    """`overlay` over `base`. Neither is changed."""
    if isinstance(overlay, dict):
        fields = dict(base) if isinstance(base, dict) else {}
        for key, value in overlay.items():
            if value is None:
                fields.pop(key, None)
            else:
                fields[key] = merged(fields.get(key), value, key)
        return fields
    if not isinstance(overlay, list):
        return overlay
    before = base if isinstance(base, list) else []
    if field == "tolerations":
        return [*before, *(item for item in overlay if item not in before)]
    if (key := MERGE_KEYS.get(field)) is None:
        return list(overlay)
    items = list(before)
    for item in overlay:
        same = [i for i, each in enumerate(items) if _named(each, item, key)]
        if not same:
            items.append(merged(None, item))
            continue
        (place,) = same[:1]
        kept = items[place]
        if field in ONE_OF and isinstance(item, dict):
            kept = {name: value for name, value in kept.items() if name in item}
        items[place] = merged(kept, item)
    return items


def _named(one: Any, other: Any, key: str) -> bool:
    return isinstance(one, dict) and isinstance(other, dict) and key in one and one[key] == other.get(key)


def overlaid(template: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]) -> dict[str, Any]:
    """A Pod template with `pod` merged into it, and `container` into its first container."""
    if container:
        first, *others = template["spec"]["containers"]
        spec = template["spec"] | {"containers": [merged(first, container), *others]}
        template = template | {"spec": spec}
    return merged(template, pod) if pod else template
