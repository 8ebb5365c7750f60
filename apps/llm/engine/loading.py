"""Parts of an engine's start."""

from collections.abc import Callable
from collections.abc import Sequence as Ids
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from apps.llm.engine.executor_protocol import Executor
from apps.llm.engine.grammar.matchers import Grammars
from apps.llm.engine.interface import Vocabulary
from apps.llm.engine.weights.model import Model
from ray_configs.llm import EngineConfig

CALIBRATION_TEXT = (
    "The quick brown fox jumps over 13 lazy dogs. In 1969, people first walked on the Moon; it took them 4 days.\n"
    'def area(width, height):\n    return width * height\n\n{"name": "Ada", "born": 1815, "likes": ["maths", "tea"]}\n'
    "Q: How many days are in a week?\nA: Seven. Le chat dort, der Hund bellt, el sol brilla. x = 3.14 * (2 + 7) / 5!\n"
)


def calibration_tokens(config: EngineConfig, vocabulary: Vocabulary, vocab_size: int) -> list[int]:
    """The text that the scales of an int8 cache are measured over; empty for other caches."""
    if config.quantize_kv_cache != "int8":
        return []
    return [token for token in vocabulary.encode(CALIBRATION_TEXT) if token < vocab_size]


def allocate_and_compile(executors: Ids[Executor[Any]], calibration: list[int]) -> None:
    """Allocate the KV caches one by one, each from the memory still free, then compile on all DP ranks at once."""
    for executor in executors:
        executor.make_cache(calibration)
    with ThreadPoolExecutor(len(executors)) as pool:
        list(pool.map(lambda executor: executor.warm_up(), executors))
        list(pool.map(lambda executor: executor.make_host_cache(), executors))


def read_vocabulary(model: Model, vocabulary: Callable[[Model], Vocabulary]) -> tuple[Vocabulary, Grammars]:
    """The model's tokenizer, and what compiles grammars over it."""
    read = vocabulary(model)
    grammars = Grammars(read.fast, model.arch.vocab_size, read.eos_token_ids)
    grammars.warm_up()
    return read, grammars
