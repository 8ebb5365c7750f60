"""Finds the model that a config names: a checkpoint's, a registered one, or a tiny stand-in for either."""

import logging
from dataclasses import dataclass, replace

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.model.families.tiny import generic, tiny
from apps.llm.engine.model.families.towers import SEEING, tower_of
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.model.towers.spec import Tower
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.prepared import Prepared, open_checkpoint
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
        if config.image_tokens:
            arch = replace(arch, tower=tower_in(checkpoint))
        return cls(arch.serving(config.max_model_len), checkpoint, random)

    @property
    def vocab_size(self) -> int:
        return self.arch.vocab_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.arch.eos_token_ids

    def settle(self, config: EngineConfig) -> EngineConfig:
        """The config with the quantization of a prepared or quantized checkpoint, and without what a model cannot do.

        Raises:
            ValueError: the config contradicts how the weights were prepared, or asks for what the model cannot do.
            UnsupportedModel: the weights are quantized in a way that cannot be read.
        """
        if self.checkpoint is not None and not self.random_weights:
            config = self.checkpoint.settle(config)
        return with_states(config, bool(self.arch.recurrent))

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


def tower_in(checkpoint: Checkpoint) -> Tower:
    """The checkpoint's vision tower.

    Raises:
        ValueError: it has none, or one that is not supported.
        UnsupportedModel: see `tower_of`.
    """
    if isinstance(checkpoint, Prepared):
        raise ValueError("image_tokens: a prepared model has no vision tower: name the one that it was prepared from")
    config = checkpoint.json("config.json")
    if (found := tower_of(config, checkpoint.image_processor())) is None:
        raise ValueError(
            f"image_tokens: images are not supported for this model (model_type {config.get('model_type')!r}); "
            f"leave it out, or use a model of {', '.join(SEEING)} with a vision_config"
        )
    return found


def with_states(config: EngineConfig, recurrent: bool) -> EngineConfig:
    """The config with the number of states to keep.

    Args:
        recurrent: the model has layers that keep a state for each sequence.

    Raises:
        ValueError: the config asks for what such a model cannot do, or for what other models have no use for.
    """
    if not recurrent:
        if config.prefix_states is not None:
            raise ValueError("prefix_states is for models with linear attention, which this one is not: unset it")
        return config
    if config.prefix_cache_host_gib:
        raise ValueError(
            "prefix_cache_host_gib: pages alone are of no use to a model with linear attention, whose states stay on "
            "the devices: unset it, and set prefix_states"
        )
    if config.speculation != "off":
        log.info("nothing is drafted: the model's states can't be taken back to before a draft that was wrong")
    states = (config.prefix_states or config.max_batch_size) if config.prefix_cache else None
    return config.model_copy(update={"prefix_states": states, "speculation": "off"})
