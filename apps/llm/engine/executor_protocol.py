"""The executor interface, the same for devices of this process and for those on the hosts of a slice."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from apps.arrays.layout import Devices, Layout
from apps.llm.engine.adapters.stack import Adapted
from apps.llm.engine.execute.readout import Readout
from apps.llm.engine.execute.sampling import TokenConstraints
from apps.llm.engine.execute.step import HostStep, StepShape
from apps.llm.engine.images.encoding import Encoding, EncodingSizes
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.products import splits_by_token
from apps.llm.engine.prefix.transfer import StateTransfer, Transfer
from apps.llm.engine.weights.model import Model
from ray_configs.llm import EngineConfig

SMALLEST_STEP = 8  # tokens; a TPU's registers hold 8 rows
SMALLEST_READ = 32  # tokens of the smallest step whose hidden states can be read


class Tokens(NamedTuple):
    """A step's results on the host: the sample of each of its sequences, and what was read out of its hidden states."""

    ids: np.ndarray  # [S] int32; negative where the sequence's numbers are not finite: see `sampling.NOT_FINITE`
    logprob: np.ndarray  # [S] float32; valid only for sequences that asked for log probabilities
    top_ids: np.ndarray  # [S, TOP_LOGPROBS]
    top_logprobs: np.ndarray
    scores: np.ndarray | None = None  # [SCORE_ROWS, T] int32, for the readout's targets
    pooled: np.ndarray | None = None  # [S, hidden] float32, sums of hidden states

    @classmethod
    def unpack(cls, host: np.ndarray, scores: np.ndarray | None = None, pooled: np.ndarray | None = None) -> "Tokens":
        """Unpack `[S, 2 + 2 * TOP_LOGPROBS]` int32, as `sampling.pack` lays it out; add the readout's results."""
        top = (host.shape[1] - 2) // 2
        top_ids, top_logprobs = host[:, 2 : 2 + top], host[:, 2 + top :].view(np.float32)
        return cls(host[:, 0], host[:, 1].view(np.float32), top_ids, top_logprobs, scores, pooled)


LaunchedT = TypeVar("LaunchedT")
"""An executor's handle of a running step; opaque to callers."""


class Executor(Protocol[LaunchedT]):
    """Runs the steps that the engine plans. One thread calls it at a time, and reads steps in launch order."""

    arch: Architecture
    pages: int
    """KV cache pages, page 0 included; known after `make_cache`."""
    host_pages: int
    """Pages for which the hosts' memory has room; known after `make_host_cache`."""
    prefix_states: int
    """States of sequences for which there is room beside those in the slots; 0: the model has none, or keeps none."""
    encodings: EncodingSizes | None
    """The calls that encode images; None: the model reads text alone."""
    skips_padding: bool
    """Whether a step takes time for the tokens that it has; else it takes that of all that it is compiled for."""

    def make_cache(self, calibration_ids: list[int]) -> int:
        """Measure int8 scales if wanted, allocate the KV cache, and return how many pages it has."""

    def warm_up(self) -> None:
        """Compile every shape and everything else a request may need, so that nothing compiles afterwards."""

    def make_host_cache(self) -> None:
        """Allocate host memory for pages, if the config asks for it and copying a page back is quicker than computing
        it. Call `warm_up` first."""

    def shape_for(self, tokens: int, seqs: int, reads: bool = False) -> StepShape:
        """The smallest compiled step that holds this many; with `reads`, one that can be launched with a readout."""

    def launch(
        self, step: HostStep, constraints: TokenConstraints | None = None, readout: Readout | None = None
    ) -> LaunchedT:
        """Start a step; pass the result to `read`. Step n + 1 may be launched before step n is read."""

    def read(self, launched: LaunchedT) -> Tokens:
        """Wait for a launched step's results."""

    def encode(self, call: Encoding) -> None:
        """Encode images, after the steps launched so far and before the next."""

    def start_slot(self, slot: int, prompt: list[int], answer: list[int]) -> None:
        """Count a sequence's tokens for its penalties as it enters the batch."""

    def clean(self, pages: Sequence[int]) -> None:
        """Fill pages of the KV cache with zeros, after the steps launched so far and before the next."""

    def keep(self, transfer: Transfer) -> None:
        """Copy pages to host memory, after the steps launched so far and before the next."""

    def bring_back(self, transfer: Transfer) -> None:
        """Copy pages from host memory, after the steps launched so far and before the next."""

    def keep_states(self, transfer: StateTransfer) -> None:
        """Copy states from slots to where they are kept, after the steps launched so far and before the next."""

    def bring_back_states(self, transfer: StateTransfer) -> None:
        """Copy kept states into slots, after the steps launched so far and before the next."""

    def write_adapter(self, index: int, layer: int, values: Adapted | None) -> None:
        """Write an adapter's matrices of one layer, arrays of the host, at its index (from 1); None: zeros."""

    @property
    def compiles_after_ready(self) -> int: ...

    @property
    def programs_compiled(self) -> int:
        """Programs that were compiled before that, because none was prepared; 0 before `warm_up`."""

    def close(self) -> None:
        """Release what is held outside this process. Idempotent, and safe at any time."""


class ExecutorProvider(Protocol):
    """Where a model's devices are."""

    def devices(self, config: EngineConfig) -> Devices:
        """The devices available."""

    def load(self, config: EngineConfig, model: Model, layout: Layout) -> Sequence[Executor[Any]]:
        """Load the weights onto the devices and return an executor for each DP rank.

        Args:
            config: the replica's; `layout.of_dp_rank` derives each rank's.
            model: at the size that the layout needs.
        """


def token_buckets(config: EngineConfig, skips_padding: bool = False) -> list[int]:
    """Step sizes to compile, in tokens, up to the budget: powers of two, and from 128 also the sizes halfway between.

    A halfway size is left out where the devices cannot split its tokens: it would take as long as the next larger one.

    Args:
        config: of a DP rank.
        skips_padding: as `Executor` has it. Then half as many sizes do, and compiling them takes half the time.
    """
    devices = config.tensor_parallel or 1
    sizes = [SMALLEST_STEP << i for i in range(32)]
    halfway = [size * 3 // 2 for size in sizes if size >= 128]
    if skips_padding:
        sizes = [size for size in sizes if size > 128 or size in (8, 32, 128)]
    else:
        sizes += [size for size in halfway if devices == 1 or splits_by_token(size, devices)]
    return [*sorted(size for size in sizes if size < config.max_step_tokens), config.max_step_tokens]


def step_shapes(
    config: EngineConfig, max_len: int, skips_padding: bool = False, both_ways: bool = False
) -> list[StepShape]:
    """Every step that is compiled, smallest first. For `both_ways` see `Architecture.sees_both_ways`."""
    pages, sizes = -(-max_len // config.page_size), token_buckets(config, skips_padding)
    images = config.image_tokens > 0
    spans = images and both_ways
    return [StepShape(tokens, min(tokens, config.max_batch_size), pages, images, spans) for tokens in sizes]


def shapes_with_readout(shapes: Sequence[StepShape]) -> list[StepShape]:
    """The shapes whose hidden states can be read out: powers of two, and the largest.

    Not all, because each needs two more compiled programs. These take a twelfth of the demo's first start, and no
    noticeable part of later ones. A text to score or embed takes a step of at most twice its size.
    """
    most, powers = shapes[-1].tokens, [SMALLEST_READ << i for i in range(32)]
    return [shape for shape in shapes if shape.tokens == most or shape.tokens in powers]


def fitting(shapes: Sequence[StepShape], tokens: int, seqs: int) -> StepShape:
    return next(shape for shape in shapes if shape.tokens >= tokens and shape.seqs >= seqs)
