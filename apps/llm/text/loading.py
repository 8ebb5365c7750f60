"""Loads a model into an engine of this process, with what its words need."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from apps.llm.api import Capabilities, Pool
from apps.llm.engine.interface import TokenEngine
from apps.llm.engine.weights.model import Model
from apps.llm.engines.vllm.model import ServedModel
from apps.llm.text.images.reader import ImageReader
from apps.llm.text.model_files import pooling_of, sampling_defaults_of, tokenizer_of
from apps.llm.text.reranker import Reranker
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice

if TYPE_CHECKING:
    from apps.llm.engines.vllm.processes import VllmProcess


class Opened(NamedTuple):
    """A loaded model; see `Engine`'s arguments."""

    tokens: TokenEngine
    config: EngineConfig
    """As the engine has settled it."""
    tokenizer: ModelTokenizer
    reranker: Reranker | None
    pooling: Pool
    sampling_defaults: Mapping[str, Any]
    images: ImageReader | None = None


def open_model(config: EngineConfig, provider: Any, slice: TpuSlice | None) -> Opened:
    """See `Engine.load`."""
    if config.engine == "vllm":
        return _open_vllm(config, provider, slice)
    from apps.llm.engine.engine import JaxEngine  # brings JAX, which `open_words` has no use for

    opened: list[tuple[Model, ModelTokenizer]] = []

    def vocabulary(model: Model) -> ModelTokenizer:
        opened.append((model, tokenizer_of(model)))
        return opened[-1][1]

    tokens = JaxEngine.load(config, vocabulary, provider, slice)
    try:
        ((model, tokenizer),) = opened
        reranker = Reranker.of(tokens.config, model.arch, tokenizer)
        settled = tokens.config
        defaults, images = sampling_defaults_of(model, settled), _images(model, tokenizer, settled, tokens.capabilities)
        return Opened(tokens, settled, tokenizer, reranker, pooling_of(model), defaults, images)
    except BaseException:
        tokens.shutdown()
        raise


def _open_vllm(config: EngineConfig, process: "VllmProcess | None", slice: TpuSlice | None) -> Opened:
    from apps.llm.engines.vllm.engine import VllmEngine

    model = ServedModel.open(config)
    tokenizer = tokenizer_of(model)
    defaults = sampling_defaults_of(model, config)
    return Opened(
        VllmEngine.load(config, model, tokenizer, process, slice), config, tokenizer, None, pooling_of(model), defaults
    )


class OpenedWords(NamedTuple):
    """What words need of a model whose engine is elsewhere; see `Engine`'s arguments."""

    tokenizer: ModelTokenizer
    reranker: Reranker | None
    pooling: Pool
    sampling_defaults: Mapping[str, Any]
    images: ImageReader | None = None


def open_words(config: EngineConfig, sizes: Capabilities) -> OpenedWords:
    """Read a model's tokenizer and config. No weights are read, and no device is touched.

    Args:
        sizes: of the engines that compute it, which may hold a tiny stand-in.

    Raises:
        CheckpointError, UnsupportedModel: the model cannot be read, or its family is not supported.
    """
    if config.engine == "vllm":
        served = ServedModel.open(config)
        return OpenedWords(tokenizer_of(served), None, pooling_of(served), sampling_defaults_of(served, config))
    model = Model.open(config, weights=False)
    model = replace(model, arch=replace(model.arch, vocab_size=sizes.vocab_size))
    tokenizer = tokenizer_of(model)
    reranker = Reranker.of(config, model.arch, tokenizer)
    images = _images(model, tokenizer, config, sizes)
    return OpenedWords(tokenizer, reranker, pooling_of(model), sampling_defaults_of(model, config), images)


def _images(model: Model, tokenizer: ModelTokenizer, config: EngineConfig, sizes: Capabilities) -> ImageReader | None:
    return ImageReader.of(model.checkpoint, tokenizer.fast.id_to_token, sizes, config.image_hosts)
