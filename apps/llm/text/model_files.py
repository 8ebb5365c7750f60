"""What a model's files say of text: its tokenizer, its end tokens, and how requests sample by default."""

import logging
from typing import Any, Protocol

from apps.llm.api import Pool, RequestError
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.text.requests.validation import check_params
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from apps.llm.text_api import SamplingParams
from ray_configs.llm import EngineConfig

log = logging.getLogger("podslice")

GENERATION = "generation_config.json"
SAMPLING = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")},
    "max_new_tokens": "max_tokens",
}
"""Its fields that are defaults of requests, as vLLM has it -> their names in SamplingParams."""
WHOLE = {"top_k", "max_tokens"}


class TokenizedModel(Protocol):
    """A model, as far as its text goes."""

    @property
    def checkpoint(self) -> Checkpoint | None: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


def tokenizer_of(model: TokenizedModel) -> ModelTokenizer:
    """The model's tokenizer, ready for its first text.

    Raises:
        CheckpointError: it cannot be read.
    """
    if model.checkpoint is None:
        tokenizer = ModelTokenizer.of_bytes(model.vocab_size)
    else:
        with model.checkpoint.tokenizer_folder() as folder:
            tokenizer = ModelTokenizer.of_folder(folder, model.vocab_size)
    tokenizer.eos_token_ids = _ends(model, tokenizer)
    tokenizer.warm_up()
    return tokenizer


def pooling_of(model: TokenizedModel) -> Pool:
    """How a model for embeddings says, in sentence-transformers' file, that it is pooled; mean for any other."""
    said = model.checkpoint.json("1_Pooling/config.json", required=False) if model.checkpoint else None
    return "last" if said and said.get("pooling_mode_lasttoken") else "mean"


def sampling_defaults_of(model: TokenizedModel, config: EngineConfig) -> dict[str, Any]:
    """What its generation_config.json says of sampling, by the names of SamplingParams; none with another
    `sampling_defaults`. What is out of range is left out, and logged."""
    if config.sampling_defaults != "model" or model.checkpoint is None:
        return {}
    said, found = model.checkpoint.json(GENERATION, required=False) or {}, dict[str, Any]()
    for theirs, name in SAMPLING.items():
        value = said.get(theirs)
        if value is None:
            continue
        try:
            if isinstance(value, bool) or not isinstance(value, int if name in WHOLE else int | float):
                raise RequestError(name, f"{name} must be a number")
            params: dict[str, Any] = {name: value}
            check_params(SamplingParams(**params), model.vocab_size)
        except RequestError as error:
            log.warning("%s: %s %.100r is not used: %s", GENERATION, theirs, value, error)
        else:
            found[name] = value
    if found:
        log.info("requests sample by %s, where they do not say otherwise: %s", GENERATION, found)
    return found


def _ends(model: TokenizedModel, tokenizer: ModelTokenizer) -> tuple[int, ...]:
    """The tokens that end an answer: those of the model's files, and the one of its tokenizer, as vLLM has it."""
    ends, own = model.eos_token_ids, tokenizer.eos_token_id
    if own is None or own in ends:
        return ends
    if own >= model.vocab_size:
        log.warning("the tokenizer's eos token %d is not among the model's %d tokens: ignored", own, model.vocab_size)
        return ends
    return (*ends, own)
