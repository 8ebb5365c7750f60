"""An engine on this machine whose steps are timed, and requests for it: where step times and comparisons are from."""

import threading
import time
from dataclasses import dataclass
from typing import Any

from apps.arrays.layout import Layout
from apps.llm.api import Sampling, TokenOutput, TokenRequest
from apps.llm.engine.engine import JaxEngine
from apps.llm.engine.execute.local import LocalDevices
from apps.llm.engine.execute.step import HostStep
from apps.llm.engine.executor_protocol import Executor, Tokens
from apps.llm.engine.interface import TokenEngine
from apps.llm.engine.weights.model import Model
from apps.llm.text.model_files import tokenizer_of
from apps.plan.simulation.fleet import Fate
from apps.plan.simulation.requests import Trace, TraceRequest, odd
from ray_configs.llm import EngineConfig


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step as it ran; times in seconds of one clock."""

    decodes: tuple[int, ...]  # as `StepClock.cost` has them
    chunks: tuple[tuple[int, int], ...]
    planned: float  # its launch began
    launched: float
    asked: float  # its reading began
    read: float  # and was done


class TimedExecutor:
    """An executor that notes when its steps are launched and read."""

    def __init__(self, executor: Executor[Any]):
        self._executor, self.steps = executor, list[TimedStep]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def launch(self, step: HostStep, constraints: Any = None, readout: Any = None) -> Any:
        began = time.perf_counter()
        launched = self._executor.launch(step, constraints, readout)
        return launched, parts_of(step), began, time.perf_counter()

    def read(self, launched: Any) -> Tokens:
        of_executor, (decodes, chunks), began, done = launched
        asked = time.perf_counter()
        tokens = self._executor.read(of_executor)
        self.steps.append(TimedStep(decodes, chunks, began, done, asked, time.perf_counter()))
        return tokens


def parts_of(step: HostStep) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """A step's decodes and chunks, as `StepClock.cost` has them."""

    def part(name: str) -> Any:
        return step.packed[step.shape.parts[name][0]]

    count = int(part("num_seqs")[0])
    lengths, starts = part("kv_lens")[:count].tolist(), part("q_starts")[: count + 1].tolist()
    rows = [(stop - start, length) for start, stop, length in zip(starts, starts[1:], lengths)]
    return tuple(length for tokens, length in rows if tokens == 1), tuple(row for row in rows if row[0] > 1)


class TimedDevices(LocalDevices):
    """The devices of this process, timed."""

    def __init__(self) -> None:
        self.executors: list[TimedExecutor] = []

    def load(self, config: EngineConfig, model: Model, layout: Layout) -> Any:
        self.executors = [TimedExecutor(executor) for executor in super().load(config, model, layout)]
        return self.executors


def load(config: EngineConfig) -> tuple[JaxEngine, TimedDevices]:
    """An engine as it serves, without drafts: these hang on the text. Raises what `JaxEngine.load` does."""
    devices = TimedDevices()
    return JaxEngine.load(config.model_copy(update={"speculation": "off"}), tokenizer_of, devices), devices


def serve(engine: TokenEngine, workload: Trace, salt: str = "") -> list[Fate]:
    """Have an engine serve a workload, in time, and say what became of it. Blocks until the last answer is done.

    Prompts are of random tokens, equal where blocks are equal. Answers are as long as asked for.

    Args:
        salt: nothing is found in the prefix cache that another run has left there, with another one.
    """
    return _Serving(engine, workload, salt).run()


class _Serving:
    def __init__(self, engine: TokenEngine, workload: Trace, salt: str):
        self._engine, self._workload, self._salt = engine, workload, salt
        self._lock = threading.Condition()
        self._fates = [Fate(arrival.at_s, arrival.prompt, arrival.answer) for arrival in workload.arrivals]
        self._left = len(self._fates)
        self._room = workload.concurrency or self._left
        self._began = 0.0

    def run(self) -> list[Fate]:
        requests = [self._request(arrival, number) for number, arrival in enumerate(self._workload.arrivals)]
        self._began = time.perf_counter()
        for number, (request, arrival) in enumerate(zip(requests, self._workload.arrivals)):
            if self._workload.concurrency is None:
                time.sleep(max(0.0, self._began + arrival.at_s - time.perf_counter()))
            with self._lock:
                self._lock.wait_for(lambda: self._room > 0)
                self._room -= 1
            self._fates[number].arrived = time.perf_counter() - self._began
            self._engine.submit([request], self._take).result()
        with self._lock:
            self._lock.wait_for(lambda: not self._left)
        return self._fates

    def _request(self, arrival: TraceRequest, number: int) -> TokenRequest:
        tokens = prompt_tokens(arrival, number, self._engine.capabilities.vocab_size)
        sampling = Sampling(seed=number, temperature=0.0, ignore_eos=True)
        limit = arrival.prompt + arrival.answer
        return TokenRequest(
            id=number,
            prompt_ids=tokens,
            limit=limit,
            sampling=sampling,
            session=arrival.session,
            cache_salts=(self._salt,),
        )

    def _take(self, outputs: list[TokenOutput]) -> None:
        now = time.perf_counter() - self._began
        for output in outputs:
            fate = self._fates[output.request]
            if output.token_ids and fate.began != fate.began:
                fate.began = now
            elif not output.token_ids and output.finish_reason is None:
                fate.entered, fate.cached = now, output.cached_tokens
            if output.finish_reason is not None:
                fate.ended, fate.refused = now, output.error or ""
                with self._lock:
                    self._left, self._room = self._left - 1, self._room + 1
                    self._lock.notify()


def prompt_tokens(arrival: TraceRequest, number: int, vocab: int) -> tuple[int, ...]:
    """Tokens of a prompt: those of equal blocks are equal, and nothing else is."""
    shared = [hash((odd(block), place)) % vocab for block in arrival.blocks for place in range(arrival.block_tokens)][
        : arrival.prompt
    ]
    own = [hash((odd(number), place, vocab)) % vocab for place in range(arrival.prompt - len(shared))]
    return (*shared, *own)
