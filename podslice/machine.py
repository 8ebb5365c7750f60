"""What can be said at once of what this machine cannot serve. Replicas find all other problems with models."""

import math
import os
from importlib.util import find_spec
from pathlib import Path

from kuberay import Refusal
from podslice.served import Served, Serving
from ray_configs.cell import CellConfig
from ray_configs.stable_diffusion import StableDiffusionConfig

PICTURES = {"PIL": "Pillow", "diffusers": "diffusers", "torch": "torch"}
"""Modules that pictures need, and the packages of the extra `stable-diffusion` that bring them."""


def logical_cpus(serving: Serving) -> int:
    """CPUs for a Ray of this machine alone. Each replica asks for what it needs on a node of its own; here they share
    what there is, so there are no fewer than all of them ask for together."""
    asked = sum(app.config.all_cpus for app in serving.applications)
    return max(os.cpu_count() or 1, math.ceil(asked))


def refuse_impossible(serving: Serving) -> None:
    """Raises Refusal for an application that can never start on this machine alone."""
    for app in serving.applications:
        _refuse_without_packages(app)
        _refuse_without_chips(app)
        _refuse_absent(app)


def _refuse_without_packages(app: Served) -> None:
    if not isinstance(app.config, StableDiffusionConfig):
        return
    if missing := [package for module, package in PICTURES.items() if find_spec(module) is None]:
        raise Refusal(
            f"{app.title} needs {', '.join(missing)}, which the extra `stable-diffusion` brings: `make serve-sd` "
            "installs it, or .venv/bin/pip install -e '.[stable-diffusion]'"
        )


def _refuse_without_chips(app: Served) -> None:
    slice = app.config.slice
    if slice is None:
        return
    rehearse = "`podslice local CONFIG --tiny` rehearses it here, `podslice apply CONFIG` runs it on GKE"
    if not slice.single_host:
        raise Refusal(f"slice={slice} has {slice.hosts} hosts, and this is one machine: leave slice out; {rehearse}")
    if (chips := chips_here()) < slice.chips:
        has = f"{chips} of them" if chips else "none"
        raise Refusal(
            f"slice={slice} needs {slice.chips} TPU chips, and this machine has {has}: leave slice out to serve on the "
            f"CPU; {rehearse}"
        )


def chips_here() -> int:
    """TPU chips that Ray will count on this machine."""
    if "TPU" in os.environ.get("RAY_OVERRIDE_RESOURCES", ""):
        return 2**31  # whoever sets it knows
    from ray._private.accelerators.tpu import TPUAcceleratorManager

    return int(TPUAcceleratorManager.get_current_node_num_accelerators())


def _refuse_absent(app: Served) -> None:
    config = app.config
    if isinstance(config, CellConfig) or getattr(config, "tiny", False) or "://" in config.model:
        return
    if not config.model.startswith(("/", ".", "~")):
        return
    path, single = Path(config.model).expanduser(), config.model.endswith(".safetensors")
    if not (path.is_file() if single else path.is_dir()):
        raise Refusal(f"{config.model}: no such {'file' if single else 'folder'}")
