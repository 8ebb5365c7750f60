"""What a RayService's serveConfigV2 says, as far as status and apply must know it."""

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


def applications(ray_service: Manifest) -> dict[str, ServeApplication]:
    entries = serve_config(ray_service).get("applications")
    named = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    found = (ServeApplication(str(entry.get("name", "default")), entry) for entry in named)
    return {app.name: app for app in found}


def serve_config(ray_service: Manifest) -> dict[str, Any]:
    try:
        config = yaml.safe_load(ray_service["spec"].get("serveConfigV2") or "")
    except yaml.YAMLError:  # the operator says so
        return {}
    return config if isinstance(config, dict) else {}
