"""Which DP rank a request goes to."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Ids
from typing import Any

from apps.llm.engine.schedule.loop import Loop
from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.placement.choice import CacheChoice, EngineLoad, home_of
from ray_configs.llm import EngineConfig


class RankChoice:
    """Chooses among the loops of an engine's DP ranks. Not thread-safe: choose and submit under one lock.

    Args:
        loops: one for each rank; with a single one there is nothing to choose, and nothing is counted.
        config: of the engine.
        clock: seconds, never back.
    """

    def __init__(self, loops: list[Loop[Any]], config: EngineConfig, clock: Callable[[], float] = time.monotonic):
        self._loops, self._config, self._clock = loops, config, clock
        self._choice = CacheChoice(len(loops), config.page_size, config.max_load_share)
        # Of each rank: sequences that are perhaps not computed yet, with their length as they came.
        self._arrived: list[list[tuple[Sequence, int]]] = [[] for _ in loops]

    def choose(self, seqs: Ids[Sequence]) -> Loop[Any]:
        """The rank for sequences that share a prompt. They must be submitted to it before the next call."""
        if len(self._loops) == 1:
            return self._loops[0]
        first, index = seqs[0], self._choice.index
        if self._config.prefix_cache:
            # Not the last token's page, as in the scheduler, which finds these names in the sequences.
            reusable = min(len(first.tokens) - 1, first.reusable)
            names = first.names(reusable // self._config.page_size, self._config.page_size)
            for seq in seqs[1:]:
                seq.hashes = list(names)
            for rank, loop in enumerate(self._loops):
                index.apply(rank, loop.cache_news(index.numbers[rank]))
        else:
            names = []
        loads = {rank: self._load(rank) for rank in range(len(self._loops))}
        home = home_of(first.request.session, {rank: str(rank) for rank in loads})
        rank = self._choice.choose(names, len(first.tokens), loads, self._clock(), home)
        self._arrived[rank].append((first, len(first.tokens)))
        return self._loops[rank]

    def _load(self, rank: int) -> EngineLoad:
        loop = self._loops[rank]
        left = [(seq, length) for seq, length in self._arrived[rank] if not seq.done and seq.computed < length]
        self._arrived[rank] = left
        waiting = sum(length - seq.computed for seq, length in left)
        return EngineLoad(waiting, loop.open, loop.open >= loop.stepper.config.max_batch_size)
