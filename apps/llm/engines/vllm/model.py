"""A model that vLLM computes, as its files have it. Its family need not be one that this project knows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.arrays.model_folder import CheckpointError
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.digest import files_digest
from apps.serving.model_roots import HUB
from ray_configs.llm import EngineConfig

PARTS = ("text_config", "llm_config", "thinker_config", "language_config")
"""Where the config of a model with towers has its decoder."""


@dataclass(frozen=True)
class ServedModel:
    """What a model's files say of its tokens. No weights are read."""

    location: str
    """What vLLM reads: a local folder or a hub id."""
    checkpoint: Checkpoint
    vocab_size: int
    hidden_size: int
    eos_token_ids: tuple[int, ...]
    decoder: str | None
    """Where in its config its decoder's is; None: it is the whole."""

    @classmethod
    def open(cls, config: EngineConfig) -> "ServedModel":
        """Open the model that a config names.

        Raises:
            CheckpointError: its files cannot be read.
            ValueError: it is nothing that vLLM can read.
        """
        if lm_cloud.find(config.model) is not None:
            raise ValueError(f"model {config.model} has no files, which engine='vllm' needs")
        if "://" in config.model:
            raise ValueError(
                f"model {config.model}: vLLM reads a folder or the hub: mount the bucket, Service(bucket=Bucket(...)), "
                "and write the model as a path below its mount, such as /gcs/NAME"
            )
        checkpoint = Checkpoint(config.model, weights=False, roots=config.model_roots)
        if checkpoint.has("manifest.json"):
            raise ValueError(f"model {config.model} is prepared for engine='jax': name the one it was made from")
        folder = Path(config.model).expanduser()
        said = checkpoint.json("config.json")
        part = next((name for name in PARTS if isinstance(said.get(name), dict)), None)
        decoder = said if part is None else said | said[part]
        generation = checkpoint.json("generation_config.json", required=False) or {}
        vocab_size = _number(config, decoder, "vocab_size")
        ends = generation.get("eos_token_id", decoder.get("eos_token_id"))
        return cls(
            str(folder.resolve()) if folder.is_dir() else config.model.removeprefix(HUB),
            checkpoint,
            vocab_size,
            _number(config, decoder, "hidden_size"),
            tuple(end for end in (ends if isinstance(ends, list) else [ends]) if _is_token(end, vocab_size)),
            part,
        )

    def digest(self, config: EngineConfig) -> bytes:
        """16 bytes: another for other weights, as far as the files show."""
        return files_digest(self.checkpoint, weights=not (config.random_weights or config.tiny))


def _number(config: EngineConfig, said: Mapping[str, Any], name: str) -> int:
    value = said.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{config.model}/config.json: {name} must be a positive whole number, not {value!r:.100}")
    return value


def _is_token(value: Any, vocab_size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab_size
