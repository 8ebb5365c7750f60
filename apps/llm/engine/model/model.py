"""Which model a config means: a checkpoint's, one of the registered, or a toy double of either."""

import logging
from dataclasses import dataclass, replace

from apps.llm.engine.model import architecture, lm_cloud
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.checkpoint import Checkpoint
from apps.llm.engine.model.prepared import Prepared, open_checkpoint
from apps.llm.engine.model.tiny import generic, tiny
from apps.llm.engine.text.tokenizer import ModelTokenizer
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")


@dataclass(frozen=True)
class Model:
    """What is to be loaded. Reads no weights and touches no device: every host of a slice may open it."""

    arch: Architecture
    checkpoint: Checkpoint | None  # None: there is none; the tokenizer is of bytes
    random_weights: bool

    @classmethod
    def open(cls, config: EngineConfig, weights: bool = True) -> "Model":
        """The model that the config names, at its own size even with `tiny`: see `at_size`.

        Args:
            weights: False where nobody reads them: then they are not fetched from the hub.

        Raises:
            CheckpointError, UnsupportedModel: the model cannot be read, or is of an unknown kind.
            ValueError: a registered model is asked for weights.
        """
        random = config.random_weights or config.tiny
        registered = lm_cloud.find(config.model)
        if registered is not None:
            if not random:
                raise ValueError(f"model {config.model} has sizes but no weights: set random_weights to true")
            return cls(registered, None, random)
        if not config.tiny:
            return cls._read(config.model, random, weights)
        try:
            return cls._read(config.model, random, weights)
        except architecture.UnsupportedModel:
            raise
        except Exception as error:  # a remote file system raises what its client raises
            log.warning("tiny: a toy Llama with a byte tokenizer stands in, for the model cannot be read: %s", error)
            return cls(generic(config.max_model_len), None, random)

    @classmethod
    def _read(cls, location: str, random: bool, weights: bool) -> "Model":
        checkpoint = Checkpoint(location, weights=False) if random else open_checkpoint(location, weights)
        arch = architecture.from_hf_config(
            checkpoint.json("config.json"), checkpoint.json("generation_config.json", required=False)
        )
        return cls(arch, checkpoint, random)

    def settle(self, config: EngineConfig) -> EngineConfig:
        """The config with what a prepared checkpoint has settled: its quantization. Others leave it as it is.

        Raises:
            ValueError: the config wants what the weights are not.
        """
        weighed = isinstance(self.checkpoint, Prepared) and not self.random_weights
        return self.checkpoint.manifest.settle(config) if weighed else config

    def at_size(self, config: EngineConfig, shards: int) -> "Model":
        """With `tiny`, the double that splits over `shards` devices as the model does; else the model itself.

        Raises:
            ValueError: the model cannot be split so.
        """
        return replace(self, arch=tiny(self.arch, shards, config.tiny_layers)) if config.tiny else self

    def tokenizer(self) -> ModelTokenizer:
        if self.checkpoint is None:
            return ModelTokenizer.of_bytes(self.arch.vocab_size)
        return ModelTokenizer.of_folder(self.checkpoint.tokenizer_folder())

    def max_len(self, config: EngineConfig) -> int:
        """Longest sequence: the config's, which must be within the model's own.

        Raises:
            ValueError: it is not.
        """
        own = self.arch.max_position
        if config.max_model_len and config.max_model_len > own:
            raise ValueError(f"max_model_len is {config.max_model_len}; this model's context is {own}")
        return config.max_model_len or own
