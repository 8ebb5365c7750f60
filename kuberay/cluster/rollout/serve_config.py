"""The parts of serveConfigV2 that status and apply need."""

from dataclasses import dataclass
from typing import Any

import yaml

from kuberay.cluster.manifests import Manifest
from ray_configs.tpu import TpuSlice


@dataclass(frozen=True)
class ServeApplication:
    name: str
    entry: dict[str, Any]

    @property
    def slice(self) -> TpuSlice | None:
        """The slice that one replica owns, if it is one of our own applications."""
        args = self.entry.get("args")
        try:
            return TpuSlice(*str(args["slice"]).split(":")) if isinstance(args, dict) and args.get("slice") else None
        except (ValueError, TypeError):  # `check` reports it
            return None

    @property
    def is_cell(self) -> bool:
        """Whether its slices are for models published later; the cell's own processes answer meanwhile."""
        return str(self.entry.get("import_path", "")).startswith("apps.cell:")


def applications(ray_service: Manifest) -> dict[str, ServeApplication]:
    entries = serve_config(ray_service).get("applications")
    named = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    found = (ServeApplication(str(entry.get("name", "default")), entry) for entry in named)
    return {app.name: app for app in found}


def serve_config(ray_service: Manifest) -> dict[str, Any]:
    try:
        config = yaml.safe_load(ray_service["spec"].get("serveConfigV2") or "")
    except yaml.YAMLError:  # the operator reports it
        return {}
    return config if isinstance(config, dict) else {}
