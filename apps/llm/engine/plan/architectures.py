"""Which architecture a config means, without its weights, and where that was learnt."""

import json
import logging
from pathlib import Path

from apps.llm.engine import lm_cloud
from apps.llm.engine.architecture import Architecture, from_hf_config
from apps.llm.engine.checkpoint import Checkpoint, CheckpointError
from apps.llm.engine.plan import known
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")


def find(config: EngineConfig) -> tuple[Architecture, str]:
    """The architecture, and a sentence that says what it was taken from.

    In this order: Saxml's registered models; a folder on this machine; the hub's cache; the table of public models;
    and only then the network, which a machine that plans may not have.

    Raises:
        CheckpointError: there is none of these.
        UnsupportedModel: its config.json describes what the decoder does not know.
    """
    registered = lm_cloud.find(config.model)
    if registered is not None:
        return registered, f"{config.model}, one of Saxml's test models"
    path = _local(config.model)
    if path is not None:
        return from_hf_config(json.loads(path.read_text())), f"config.json in {path.parent}"
    name = known.find(config.model)
    if name is not None:
        return from_hf_config(known.MODELS[name]), f"the table of public models, as {name} (no config.json was read)"
    try:
        checkpoint = Checkpoint(config.model, weights=False)
        return from_hf_config(checkpoint.json("config.json")), f"config.json of {config.model}"
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}\nWithout it the plan needs a model that it knows by name: {', '.join(known.MODELS)}"
        ) from error


def _local(model: str) -> Path | None:
    """config.json on this machine: in the folder of that name, or in the hub's cache."""
    path = Path(model).expanduser() / "config.json"
    if path.is_file():
        return path
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None
