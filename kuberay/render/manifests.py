"""The files that `render` writes: a header with their source and open placeholders, then the objects."""

import sys
from pathlib import Path
from typing import Any

from kuberay.render.yaml import to_yaml
from ray_configs.cloud import BUCKET_PLACEHOLDER, PROJECT_PLACEHOLDER


def manifest(source: str, objects: list[dict[str, Any]]) -> str:
    """The objects as YAML, under a header that names the config (`source`, as given) and open placeholders."""
    lines = [f"Made by `python -m kuberay render {source}`: change the config, not this file."]
    about = (getattr(sys.modules.get(source.partition(":")[0]), "__doc__", None) or "").strip().splitlines()
    if about:
        lines.append(about[0])
    text = repr(objects)
    for placeholder in (PROJECT_PLACEHOLDER, BUCKET_PLACEHOLDER):
        if placeholder in text:
            lines.append(f"Put in your own {placeholder} first: sed -i 's/{placeholder}/.../' this-file.yaml")
    return to_yaml(objects, header="\n".join(lines))


def file_name(source: str) -> str:
    """`stable_diffusion_v4.yaml` for ray_configs.catalog.stable_diffusion_v4 and for stable_diffusion_v4.py."""
    path, _, name = source.partition(":")
    stem = Path(path).stem if path.endswith(".py") else path.rsplit(".", 1)[-1]
    return f"{stem}_{name}.yaml" if name else f"{stem}.yaml"
