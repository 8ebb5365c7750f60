"""Engines that compute nothing: their steps take what a clock says, so that many fit on one machine."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from apps.arrays.layout import Layout
from apps.llm.api import TOP_LOGPROBS
from apps.llm.engine.execute.local import LocalDevices
from apps.llm.engine.execute.step import HostStep, StepShape
from apps.llm.engine.executor_protocol import Tokens, fitting, step_shapes
from apps.llm.engine.prefix.transfer import StateTransfer
from apps.llm.engine.weights.model import Model
from apps.plan.simulation.recording import parts_of
from apps.plan.simulation.timing import StepClock
from ray_configs.llm import EngineConfig


class SleepingExecutor:
    """An `Executor` whose reader sleeps until the step would have ended. Every sample is token 0."""

    compiles_after_ready = programs_compiled = host_pages = 0

    def __init__(self, config: EngineConfig, model: Model, times: StepClock, pages: int, skips_padding: bool):
        self.prefix_states = config.prefix_states or 0
        self.arch, self.pages, self.skips_padding, self._times = model.arch, pages, skips_padding, times
        self._shapes = step_shapes(config, model.max_len(config), skips_padding)
        self._free, self._since = 0.0, times.remembers

    def make_cache(self, calibration_ids: list[int]) -> int:
        return self.pages

    def shape_for(self, tokens: int, seqs: int, reads: bool = False) -> StepShape:
        return fitting(self._shapes, tokens, seqs)

    def launch(self, step: HostStep, constraints: Any = None, readout: Any = None) -> float:
        decodes, chunks = parts_of(step)
        self._free = max(time.perf_counter(), self._free) + self._times.cost(decodes, chunks, self._since).seconds
        self._since = 0 if chunks else min(self._since + 1, self._times.remembers)
        return self._free

    def read(self, launched: float) -> Tokens:
        time.sleep(max(0.0, launched - time.perf_counter()))
        rows = self._shapes[-1].seqs
        none = np.zeros((rows, TOP_LOGPROBS), np.int32)
        return Tokens(np.zeros(rows, np.int32), np.zeros(rows, np.float32), none, none.view(np.float32))

    def warm_up(self) -> None: ...
    def make_host_cache(self) -> None: ...
    def start_slot(self, slot: int, prompt: list[int], answer: list[int]) -> None: ...
    def keep_states(self, transfer: StateTransfer) -> None: ...
    def bring_back_states(self, transfer: StateTransfer) -> None: ...
    def clean(self, pages: Sequence[int]) -> None: ...
    def close(self) -> None: ...


class SleepingDevices(LocalDevices):
    """Devices on which a model's steps take these times, with a cache of so many pages."""

    def __init__(self, times: StepClock, pages: int, skips_padding: bool):
        self._times, self._pages, self._skips = times, pages, skips_padding

    def load(self, config: EngineConfig, model: Model, layout: Layout) -> Any:
        of_rank = layout.of_dp_rank(config)
        return [SleepingExecutor(of_rank, model, self._times, self._pages, self._skips) for _ in range(layout.data)]
