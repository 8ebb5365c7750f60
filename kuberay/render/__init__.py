"""Renders configs to Kubernetes objects: `render(config)` creates them, `to_yaml(objects)` writes them.

Objects are plain dicts, as the Kubernetes API takes them, in the order in which to apply them. A key may carry a
comment for readers of the YAML (see notes.py). The same config always renders to the same bytes.
"""

from typing import Any

from kuberay.render.jobs import job_objects
from kuberay.render.ray.ray_service import service_objects
from kuberay.render.ray.serve_config import serve_config
from kuberay.render.yaml import to_yaml
from ray_configs.job import Job
from ray_configs.service import Service

__all__ = ["render", "serve_config", "to_yaml"]


def render(config: Service | Job) -> list[dict[str, Any]]:
    """All objects of the config, each after the objects that it refers to."""
    return service_objects(config) if isinstance(config, Service) else job_objects(config)
