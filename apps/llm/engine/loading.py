"""Parts of an engine's start."""

from collections.abc import Callable
from collections.abc import Sequence as Ids
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from apps.llm.engine.executor_protocol import Executor
from apps.llm.engine.grammar.matchers import Grammars
from apps.llm.engine.interface import Vocabulary
from apps.llm.engine.weights.model import Model


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
