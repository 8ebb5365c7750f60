"""What a RayService's serveConfigV2 says, as far as status and apply must know it."""

from dataclasses import dataclass
from typing import Any

import yaml

from kuberay.cluster.manifests import Manifest
from kuberay.cluster.slices import Works
from ray_configs.tpu import TpuSlice
from ray_configs.workers import group_name


@dataclass(frozen=True)
class Application:
    name: str
    entry: dict[str, Any]

    @property
    def slice(self) -> TpuSlice | None:
        """What one replica of it owns, where it is one of our own applications."""
        args = self.entry.get("args")
        try:
            return TpuSlice(*str(args["slice"]).split(":")) if isinstance(args, dict) and args.get("slice") else None
        except (ValueError, TypeError):  # `check` says so
            return None

    @property
    def is_cell(self) -> bool:
        """Its slices are for models that are published later; its own processes answer all the while."""
        return str(self.entry.get("import_path", "")).startswith("apps.cell:")


def applications(ray_service: Manifest) -> dict[str, Application]:
    entries = _config(ray_service).get("applications")
    named = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return {str(entry.get("name", "default")): Application(str(entry.get("name", "default")), entry) for entry in named}


def when_slices_work(ray_service: Manifest) -> dict[str, Works]:
    """By worker group: when a slice of it does what the service wants of it."""
    groups = ray_service["spec"]["rayClusterConfig"].get("workerGroupSpecs") or []
    names = [group["groupName"] for group in groups]
    if _config(ray_service).get("proxy_location") in ("HeadOnly", "Disabled"):
        return dict.fromkeys(names, Works.NONE)
    told = applications(ray_service).values()
    serving = {group_name(app.slice) for app in told if app.slice and not app.is_cell}
    cells = {group_name(app.slice) for app in told if app.slice and app.is_cell} - serving
    elsewhere = {name for name in names if name in cells or processes_of(name) in names}
    return {name: Works.NONE if name in elsewhere else Works.ONE for name in names}


def processes_of(group: str) -> str:
    """The group of CPU Pods on which the replicas' own processes stand, where a slice has several hosts."""
    return "cpu-" + group.removeprefix("tpu-")


def _config(ray_service: Manifest) -> dict[str, Any]:
    try:
        config = yaml.safe_load(ray_service["spec"].get("serveConfigV2") or "")
    except yaml.YAMLError:  # the operator says so
        return {}
    return config if isinstance(config, dict) else {}
