"""Finds the model that a config names: a checkpoint's, a registered one, or a tiny stand-in for either."""

import logging
from dataclasses import dataclass, replace

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.model.families.tiny import generic, tiny
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.prepared import open_checkpoint
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")


@dataclass(frozen=True)
class Model:
    """The model to load. Opening it reads no weights and touches no device, so every host of a slice can do it."""

    arch: Architecture
    checkpoint: Checkpoint | None  # None: no checkpoint, and a byte tokenizer
    random_weights: bool

    @classmethod
    def open(cls, config: EngineConfig, weights: bool = True) -> "Model":
        """Open the model that the config names, at full size even with `tiny`: see `at_size`.

        Args:
            weights: False where they will not be read, so that they are not fetched from the hub.

        Raises:
            CheckpointError, UnsupportedModel: the model cannot be read, or its family is not supported.
            ValueError: the config asks for the weights of a registered model, which has none.
        """
        random = config.random_weights or config.tiny
        registered = lm_cloud.find(config.model)
        if registered is not None:
            if not random:
                raise ValueError(f"model {config.model} has sizes but no weights: set random_weights to true")
            return cls(registered, None, random)
        if not config.tiny:
            return cls._read(config, random, weights)
        try:
            return cls._read(config, random, weights)
        except UnsupportedModel:
            raise
        except Exception as error:  # remote file systems raise their clients' own exceptions
            log.warning("tiny: using a tiny Llama with a byte tokenizer, because the model cannot be read: %s", error)
            return cls(generic(config.max_model_len), None, random)

    @classmethod
    def _read(cls, config: EngineConfig, random: bool, weights: bool) -> "Model":
        place, roots = config.model, config.model_roots
        checkpoint = Checkpoint(place, False, roots) if random else open_checkpoint(place, weights, roots)
        arch = checkpoint.architecture(weights and not random)
        return cls(arch.serving(config.max_model_len), checkpoint, random)

    def settle(self, config: EngineConfig) -> EngineConfig:
        """The config with the quantization of a prepared or quantized checkpoint, and without what a model cannot do.

        Raises:
            ValueError: the config contradicts how the weights were prepared, or asks for what the model cannot do.
            UnsupportedModel: the weights are quantized in a way that cannot be read.
        """
        if self.checkpoint is not None and not self.random_weights:
            config = self.checkpoint.settle(config)
        return without_reuse(config) if self.arch.recurrent else config

    def at_size(self, config: EngineConfig, shards: int) -> "Model":
        """With `tiny`, a tiny stand-in that splits over `shards` devices like the model; otherwise the model itself.

        Raises:
            ValueError: the model cannot be split over that many devices.
        """
        return replace(self, arch=tiny(self.arch, shards, config.tiny_layers)) if config.tiny else self

    def max_len(self, config: EngineConfig) -> int:
        """The longest sequence, in tokens: the config's, or the model's context where it sets none.

        Raises:
            ValueError: the config's exceeds the model's context.
        """
        own = self.arch.max_position
        if config.max_model_len and config.max_model_len > own:
            raise ValueError(f"max_model_len is {config.max_model_len}, but this model's context is {own}: lower it")
        return config.max_model_len or own


def without_reuse(config: EngineConfig) -> EngineConfig:
    """For a model that keeps a state for each sequence: that has one place, its end, from which to go on.

    Raises:
        ValueError: the config asks for more.
    """
    wanted = {"prefix_cache_host_gib": config.prefix_cache_host_gib, "kv_events": config.kv_events}
    for name, value in wanted.items():
        if value:
            raise ValueError(
                f"{name} is for reused prefixes, which a model with linear attention does not have: unset it"
            )
    if config.prefix_cache or config.speculation != "off":
        log.info("no prefixes are reused and nothing is drafted: the model keeps a state for each sequence")
    return config.model_copy(update={"prefix_cache": False, "speculation": "off"})
