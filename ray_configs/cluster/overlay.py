"""What a platform adds to rendered Pods: pull secrets, security contexts, tolerations, labels, sidecars, volumes."""

from typing import Annotated, Any

from pydantic import AfterValidator, JsonValue

PARTS = ("metadata", "spec")


def _pod(overlay: dict[str, Any]) -> dict[str, Any]:
    for key, value in overlay.items():
        if key not in PARTS:
            raise ValueError(
                f"{key!r} is not a part of a Pod template: write {{'spec': {{{key!r}: ...}}}}, or 'metadata' for "
                "labels and annotations"
            )
        if not isinstance(value, dict):
            raise ValueError(f"{key!r} must be a mapping of fields")
    containers = overlay.get("spec", {}).get("containers", [])
    if not isinstance(containers, list) or not all(isinstance(each, dict) and each.get("name") for each in containers):
        raise ValueError("spec.containers must be a list of containers, each with its name")
    return overlay


def _container(overlay: dict[str, Any]) -> dict[str, Any]:
    if "name" in overlay:
        raise ValueError(
            "'name' cannot change: leave it out. Containers beside this one: pod={'spec': {'containers': ...}}"
        )
    return overlay


PodOverlay = Annotated[dict[str, JsonValue], AfterValidator(_pod)]
"""Part of a Pod template: `metadata` (labels, annotations) and `spec`."""
ContainerOverlay = Annotated[dict[str, JsonValue], AfterValidator(_container)]
"""Part of a container's spec."""
