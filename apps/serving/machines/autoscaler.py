"""Ray's autoscaler for KubeRay, with files in place of Kubernetes' API: what `podslice local` runs beside its head.

python -m apps.serving.machines.autoscaler RAYCLUSTER PODS   # of the cluster at RAY_ADDRESS, until standard input ends

RAYCLUSTER is the object, which the autoscaler patches; PODS the list of its Pods. Besides `private_ray`, this alone
uses Ray's private API.
"""

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.autoscaler._private.kuberay import node_provider
from ray.autoscaler._private.kuberay.autoscaling_config import AutoscalingConfigProducer
from ray.autoscaler.v2.instance_manager.cloud_providers.kuberay import cloud_provider
from ray.autoscaler.v2.instance_manager.config import KubeRayConfigReader
from ray.autoscaler.v2.monitor import AutoscalerMonitor


class KubernetesFiles:
    """Ray's `IKubernetesHttpApiClient`, as far as the autoscaler uses it."""

    def __init__(self, ray_cluster: Path, pods: Path):
        self._ray_cluster, self._pods = ray_cluster, pods

    def get(self, path: str) -> Any:
        return json.loads((self._pods if path.startswith("pods") else self._ray_cluster).read_text())

    def patch(self, path: str, payload: Sequence[dict[str, Any]], content_type: str = "") -> Any:
        changed = patched(self.get(path), payload)
        written = self._ray_cluster.with_suffix(".new")
        written.write_text(json.dumps(changed))
        written.rename(self._ray_cluster)
        return changed


def patched(value: Any, operations: Sequence[dict[str, Any]]) -> Any:
    """A JSON Patch (RFC 6902) that replaces members, applied in place. Raises NotImplementedError for another."""
    for operation in operations:
        if operation["op"] != "replace":
            raise NotImplementedError(f"a JSON Patch with {operation['op']}")
        *parents, last = operation["path"].removeprefix("/").split("/")
        place = value
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[last] = operation["value"]
    return value


def main(ray_cluster: Path, pods: Path) -> None:
    threading.Thread(target=_end_with_input, daemon=True).start()
    files = KubernetesFiles(ray_cluster, pods)
    for module in (node_provider, cloud_provider):
        module.KubernetesHttpApiClient = lambda namespace: files  # type: ignore[attr-defined]
    named = files.get("rayclusters")["metadata"]
    reader = KubeRayConfigReader(AutoscalingConfigProducer(named["name"], named["namespace"]))
    AutoscalerMonitor(os.environ["RAY_ADDRESS"], reader).run()


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
