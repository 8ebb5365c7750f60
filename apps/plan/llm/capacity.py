"""What fits into a device's HBM: the KV cache, and the largest batch of each sequence length."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from apps.llm.engine.execute.step import StepShape
from apps.plan.llm.program import MeasuredStep


@dataclass(frozen=True)
class Memory:
    """Memory in use, in bytes on each device."""

    weights: float
    kv_cache: float
    other: float
    """Sampling state and the step's inputs."""
    temporaries: float
    """Temporaries of the step that needs most."""
    programs: float
    """Code of all steps that the engine compiles: see `code_bytes`."""
    peak_by_compiler: float
    """The compiler's own figure for the largest step: with the KV cache, without the other steps' code."""
    usable: float
    images: float = 0
    """The vision tower, the encoded images, and the temporaries of encoding, which a step's do not cover."""

    @property
    def total(self) -> float:
        parts = self.weights + self.kv_cache + self.other + self.temporaries
        return max(parts, self.peak_by_compiler) + self.programs + self.images

    def with_cache(self, kv_cache: float) -> "Memory":
        """A copy with another size of KV cache."""
        peak = self.peak_by_compiler + kv_cache - self.kv_cache
        return replace(self, kv_cache=kv_cache, peak_by_compiler=peak)

    @property
    def fits(self) -> bool:
        return self.total <= self.usable


@dataclass(frozen=True)
class BatchMemory:
    """Memory besides the KV cache that grows with the batch: `each` bytes for each of `batch` sequences."""

    batch: int
    each: float


def memory(
    shapes: Sequence[StepShape], decode: tuple[StepShape, MeasuredStep], most: MeasuredStep, usable: int
) -> Memory:
    """Memory of an engine that compiles `shapes`, smallest first, from figures for the decode step and the largest."""
    shape, step = decode
    return Memory(
        weights=step.weights,
        kv_cache=step.kv_cache,
        other=max(step.other_arguments, most.other_arguments),
        temporaries=max(step.temporaries, most.temporaries),
        programs=code_bytes([each.tokens for each in shapes], shape.tokens, step.code, most.code),
        peak_by_compiler=max(step.peak, most.peak),
        usable=usable,
    )


def code_bytes(tokens: Sequence[int], decode_tokens: int, decode: float, most: float) -> float:
    """Code size of all steps, interpolated between the decode step's and the largest's.

    Between the two, code grows roughly with the logarithm of the tokens; smaller steps count as the decode step. Tested
    against every step's own code size in tests/plan/expected.
    """
    span = math.log(tokens[-1] / decode_tokens)

    def share(count: int) -> float:
        return math.log(count / decode_tokens) / span if count > decode_tokens else 0.0

    return sum(decode + (most - decode) * share(count) for count in tokens)


def most_pages(memory: Memory, page_bytes: float, fraction: float) -> int:
    """Number of pages that fit if the cache takes `fraction` of the memory that the rest leaves free."""
    rest = memory.total - memory.kv_cache
    return max(0, int((memory.usable - rest) * fraction / page_bytes))


def batches(room: float, page_bytes: float, page_size: int, max_len: int, state: BatchMemory) -> list[tuple[int, int]]:
    """(context, batch) pairs that fit into `room` bytes, for the longest sequence, half of it, and so on.

    Page 0 belongs to no sequence. Sequences beyond the config's batch need more state and working memory too.
    """
    found: list[tuple[int, int]] = []
    length = max_len
    while length >= 16 and len(found) < 6:
        each = -(-length // page_size) * page_bytes
        batch = (room - page_bytes) / each
        if batch > state.batch:
            batch = (room - page_bytes + state.batch * state.each) / (each + state.each)
        found.append((length, max(0, int(batch))))
        length //= 2
    return found
