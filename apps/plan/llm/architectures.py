"""Finds the architecture of a config's model without its weights, and records where it was found."""

from dataclasses import dataclass, replace
from pathlib import Path

from apps.arrays.model_folder import CheckpointError
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.towers.spec import Tower
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.model import tower_in, with_states
from apps.llm.engine.weights.prepared import manifest_of
from apps.plan.llm import known
from ray_configs.llm import EngineConfig


@dataclass(frozen=True)
class Planned:
    """A model without its weights.

    Args:
        config: updated with what a prepared checkpoint determines, int8 weights, and without what the model cannot do.
        source: a sentence that says where the architecture was found.
    """

    arch: Architecture
    config: EngineConfig
    source: str


def find(config: EngineConfig) -> Planned:
    """Looks up the config's model.

    In this order: Saxml's registered models; a folder on this machine; the hub's cache; the table of public models;
    and only then the network, which a machine that plans may not have.

    Raises:
        CheckpointError: none of these has it.
        UnsupportedModel: its config.json describes a model that the decoder does not support.
        ValueError: it was prepared with another dtype than the config's, or the config asks for what it cannot do.
    """
    planned = _found(config)
    return replace(planned, config=with_states(planned.config, bool(planned.arch.recurrent)))


def _found(config: EngineConfig) -> Planned:
    registered = lm_cloud.find(config.model)
    if registered is not None:
        return Planned(registered, config, f"{config.model}, one of Saxml's test models")
    folder = _local(config.model)
    if folder is not None:
        return _read(Checkpoint(str(folder)), config)
    name = known.find(config.model)
    if name is not None:
        arch = from_hf_config(known.MODELS[name])
        if config.image_tokens:
            arch = replace(arch, tower=_known_tower(name))
        return Planned(arch, config, f"the table of public models, as {name} (no config.json was read)")
    try:
        return _read(Checkpoint(config.model, weights=False), config)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}\nWithout it the plan needs a model that it knows by name: {', '.join(known.MODELS)}"
        ) from error


def _read(folder: Checkpoint, config: EngineConfig) -> Planned:
    arch = from_hf_config(folder.json("config.json"))
    if config.image_tokens:
        arch = replace(arch, tower=tower_in(folder))
    if config.random_weights or config.tiny:
        return Planned(arch, config, f"config.json of {folder.location}")
    manifest = manifest_of(folder)
    if manifest is None:
        return Planned(arch, folder.settle(config), f"config.json of {folder.location}")
    return Planned(arch, manifest.settle(config), f"{folder.location}, as it was prepared")


def _known_tower(name: str) -> Tower:
    """Raises ValueError for a model whose tower is not known."""
    if (tower := known.TOWERS.get(name)) is None:
        raise ValueError(
            f"image_tokens: the plan does not know the vision tower of {name}, but of {', '.join(known.TOWERS)}: name "
            "a folder with the model's config.json, or leave image_tokens out"
        )
    return tower


def _local(model: str) -> Path | None:
    """A local folder with a config.json: the model itself, or its snapshot in the hub's cache."""
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(cached).parent if isinstance(cached, str) else None
