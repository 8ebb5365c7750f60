"""Finds the model that a config names: a checkpoint's, a registered one, or a tiny stand-in for either."""

import logging
from dataclasses import dataclass, replace
from typing import Any

from apps.llm.api import Pool, RequestError, SamplingParams
from apps.llm.engine.model import architecture
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.model.tiny import generic, tiny
from apps.llm.engine.text.tokenizer import ModelTokenizer
from apps.llm.engine.validation import check_params
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.prepared import open_checkpoint
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")

GENERATION = "generation_config.json"
SAMPLING = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")},
    "max_new_tokens": "max_tokens",
}
"""Its fields that are defaults of requests, as vLLM has it -> their names in SamplingParams."""
WHOLE = {"top_k", "max_tokens"}


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
        except architecture.UnsupportedModel:
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
        """The config with the quantization of a prepared or quantized checkpoint; unchanged for other models.

        Raises:
            ValueError: the config contradicts how the weights were prepared.
            UnsupportedModel: the weights are quantized in a way that cannot be read.
        """
        return config if self.checkpoint is None or self.random_weights else self.checkpoint.settle(config)

    def at_size(self, config: EngineConfig, shards: int) -> "Model":
        """With `tiny`, a tiny stand-in that splits over `shards` devices like the model; otherwise the model itself.

        Raises:
            ValueError: the model cannot be split over that many devices.
        """
        return replace(self, arch=tiny(self.arch, shards, config.tiny_layers)) if config.tiny else self

    def tokenizer(self) -> ModelTokenizer:
        if self.checkpoint is None:
            return ModelTokenizer.of_bytes(self.arch.vocab_size)
        with self.checkpoint.tokenizer_folder() as folder:
            return ModelTokenizer.of_folder(folder, self.arch.vocab_size)

    def pooling(self) -> Pool:
        """How a model for embeddings says, in sentence-transformers' file, that it is pooled; mean for any other."""
        said = self.checkpoint.json("1_Pooling/config.json", required=False) if self.checkpoint else None
        return "last" if said and said.get("pooling_mode_lasttoken") else "mean"

    def sampling_defaults(self, config: EngineConfig) -> dict[str, Any]:
        """What its generation_config.json says of sampling, by the names of SamplingParams; none with another
        `sampling_defaults`. What is out of range is left out, and logged."""
        if config.sampling_defaults != "model" or self.checkpoint is None:
            return {}
        said, found = self.checkpoint.json(GENERATION, required=False) or {}, dict[str, Any]()
        for theirs, name in SAMPLING.items():
            value = said.get(theirs)
            if value is None:
                continue
            try:
                if isinstance(value, bool) or not isinstance(value, int if name in WHOLE else int | float):
                    raise RequestError(name, f"{name} must be a number")
                check_params(SamplingParams(**{name: value}), self.arch.vocab_size)
            except RequestError as error:
                log.warning("%s: %s %.100r is not used: %s", GENERATION, theirs, value, error)
            else:
                found[name] = value
        if found:
            log.info("requests sample by %s, where they do not say otherwise: %s", GENERATION, found)
        return found

    def max_len(self, config: EngineConfig) -> int:
        """The longest sequence, in tokens: the config's, or the model's context where it sets none.

        Raises:
            ValueError: the config's exceeds the model's context.
        """
        own = self.arch.max_position
        if config.max_model_len and config.max_model_len > own:
            raise ValueError(f"max_model_len is {config.max_model_len}, but this model's context is {own}: lower it")
        return config.max_model_len or own
