"""What fits: the KV cache beside everything else in a device's HBM, and the batches of each length that it holds."""

from dataclasses import dataclass, replace

from apps.llm.engine.executor_protocol import step_shapes
from apps.plan.llm.program import MeasuredStep
from ray_configs.llm import EngineConfig


@dataclass(frozen=True)
class Memory:
    """Bytes on each device."""

    weights: float
    kv_cache: float
    other: float
    """Sampling state and the step's inputs."""
    temporaries: float
    """Of the step that needs most."""
    programs: float
    """The code of all steps that the engine compiles, the largest standing for each."""
    peak_by_compiler: float
    """The compiler's own figure for the largest step, KV cache included, the other steps' code not."""
    usable: float

    @property
    def total(self) -> float:
        parts = self.weights + self.kv_cache + self.other + self.temporaries
        return max(parts, self.peak_by_compiler) + self.programs

    def with_cache(self, kv_cache: float) -> "Memory":
        """The same with another KV cache."""
        peak = self.peak_by_compiler + kv_cache - self.kv_cache
        return replace(self, kv_cache=kv_cache, peak_by_compiler=peak)

    @property
    def fits(self) -> bool:
        return self.total <= self.usable


@dataclass(frozen=True)
class Beside:
    """What grows with the batch besides its KV cache: the steps are of `batch` sequences, at `each` bytes."""

    batch: int
    each: float


def memory(config: EngineConfig, max_len: int, steps: list[MeasuredStep], usable: int) -> Memory:
    return Memory(
        weights=steps[0].weights,
        kv_cache=steps[0].kv_cache,
        other=max(step.other_arguments for step in steps),
        temporaries=max(step.temporaries for step in steps),
        programs=max(step.code for step in steps) * len(step_shapes(config, max_len)),
        peak_by_compiler=max(step.peak for step in steps),
        usable=usable,
    )


def most_pages(memory: Memory, page_bytes: float, fraction: float) -> int:
    """Pages for which there is room when the cache takes `fraction` of what the rest leaves free."""
    rest = memory.total - memory.kv_cache
    return max(0, int((memory.usable - rest) * fraction / page_bytes))


def batches(room: float, page_bytes: float, page_size: int, max_len: int, beside: Beside) -> list[tuple[int, int]]:
    """(context, batch) for which `room` bytes have space: the longest sequence, its half, and so on.

    Page 0 belongs to no sequence. Sequences beyond the config's batch need more state and working memory too.
    """
    found: list[tuple[int, int]] = []
    length = max_len
    while length >= 16 and len(found) < 6:
        each = -(-length // page_size) * page_bytes
        batch = (room - page_bytes) / each
        if batch > beside.batch:
            batch = (room - page_bytes + beside.batch * beside.each) / (each + beside.each)
        found.append((length, max(0, int(batch))))
        length //= 2
    return found
