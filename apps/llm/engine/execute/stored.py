"""Where an engine's prepared programs are, and which of them are for its config and devices."""

from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from apps.arrays.stored_programs import fingerprint, loading, trial
from apps.arrays.stored_programs.loading import PreparedPrograms
from apps.arrays.stored_programs.trial import TrialHosts
from apps.llm.engine import kernels
from apps.llm.engine.execute.programs import EnginePrograms
from apps.llm.engine.executor_protocol import step_shapes
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.prepared import Prepared
from ray_configs.llm import EngineConfig

PROGRAMS = "programs"
"""The folder's name, below that of a prepared model."""
SOURCES = "arrays", "llm/engine"
"""Packages that an engine's programs are made by."""
FIELDS = (
    *("dtype", "quantize_weights", "quantize_kv_cache", "attention", "page_size", "pages", "max_step_tokens"),
    *("expert_parallel", "image_tokens", "max_image_tokens"),
)
"""Those of the config that programs hang on, as they are on every DP rank."""
SHARED = "max_batch_size", "prefix_cache_host_gib"
"""Those of which each DP rank has a part."""


def location(config: EngineConfig, model: Model) -> str | None:
    """Where the config's programs are, if there are any."""
    if config.prepared_programs is not None:
        return config.prepared_programs
    return below(model.checkpoint.location) if isinstance(model.checkpoint, Prepared) else None


def below(folder: str) -> str:
    """Where those of a prepared model are."""
    return f"{folder.rstrip('/')}/{PROGRAMS}"


def listed(config: EngineConfig, model: Model, mesh: Mesh, skips_padding: bool) -> EnginePrograms:
    """The programs of a DP rank, but for the number of pages and of calibration tokens."""
    shapes = tuple(step_shapes(config, model.max_len(config), skips_padding, model.arch.sees_both_ways))
    return EnginePrograms(config, model.arch, mesh, shapes)


def made_for(programs: EnginePrograms, devices: Sequence[jax.Device]) -> dict[str, str]:
    """What the programs hang on, by name: see `ProgramManifest.made_for`.

    Args:
        devices: of all DP ranks.
    """
    config, longest = programs.config, programs.shapes[0].max_pages * programs.config.page_size
    adapters = config.adapter_capacity
    return {
        **_known(config),
        **fingerprint.machine(devices),
        "model's sizes": fingerprint.digest(programs.arch)[: fingerprint.SHORT],
        "max_model_len": f"up to {longest}",
        "max_adapters": f"{adapters} of rank {config.max_adapter_rank}" if adapters else "0",
        "devices of a DP rank": str(programs.mesh.size),
        **{field: str(getattr(config, field)) for field in SHARED},
    }


def _known(config: EngineConfig) -> dict[str, str]:
    """The part of `made_for` that is known before the devices are."""
    return {
        "podslice": fingerprint.sources(*SOURCES)[: fingerprint.SHORT],
        **fingerprint.versions(),
        **{field: str(getattr(config, field)) for field in FIELDS},
    }


def try_sets(config: EngineConfig, model: Model, joins: TrialHosts | None = None) -> None:
    """See `trial.try_sets`."""
    where = location(config, model)
    if where is not None:
        trial.try_sets(where, _known(model.settle(config)), kernels.register, joins)


def find(config: EngineConfig, model: Model, mesh: Mesh, skips_padding: bool = False) -> PreparedPrograms | None:
    """Begin to load the programs that were prepared for all DP ranks of this process; None: there are none.

    Args:
        config: a DP rank's, as are the mesh and what they have in common.
    """
    where = location(config, model)
    if where is None:
        return None
    here = made_for(listed(config, model, mesh, skips_padding), jax.devices())
    return loading.find(where, here, kernels.register)
