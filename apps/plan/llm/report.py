"""The plan of a language model, in the form of its JSON."""

from typing import Self

from pydantic import Field

from apps.plan.report import Part, Plan, Run

TOKENS_AN_HOUR = 1_000_000


class MemoryOfChip(Part):
    """GiB on each chip."""

    weights: float
    kv_cache: float
    other: float = Field(description="sampling state and the step's inputs")
    temporaries: float = Field(description="of the step that needs most")
    programs: float = Field(description="code of all compiled steps, most of it interpolated")
    total: float
    peak_by_compiler: float = Field(description="the compiler's own figure for the largest step alone")
    usable: float = Field(description="what the compiler lets programs use of the chip's HBM")
    fits: bool


class LargestBatch(Part):
    context: int = Field(description="tokens of each sequence, prompt and answer")
    batch: int = Field(description="sequences of that length whose KV cache fits, over all copies")


class StepReport(Run):
    tokens: int
    sequences: int
    context: int = Field(description="tokens in each sequence's KV cache")
    weights_and_live_kv_bytes: float = Field(description="each weight and each live key and value once, as stored")
    hbm_over_least: float = Field(description="hbm_bytes over weights_and_live_kv_bytes")


class ServingRates(Part):
    """Serving rates that follow from the step times, `at_floor` and `estimate`."""

    time_per_token_ms: float
    tokens_per_s_per_slice: float
    time_to_first_token_ms: float
    chips_per_million_tokens_an_hour: float

    @classmethod
    def of(cls, step_s: float, first_token_s: float, batch: int, chips: int) -> Self:
        """Computed from the time of a decode step of `batch` sequences, for one replica's slice."""
        tokens = batch / step_s
        return cls(
            time_per_token_ms=step_s * 1e3,
            tokens_per_s_per_slice=tokens,
            time_to_first_token_ms=first_token_s * 1e3,
            chips_per_million_tokens_an_hour=chips * TOKENS_AN_HOUR / 3600 / tokens,
        )


class LLMPlan(Plan):
    architecture_from: str
    parameters: float
    active_parameters: float = Field(description="those that one token is multiplied by, and the embeddings")
    hosts: int
    mesh: dict[str, int] = Field(description="data: copies of the model; tensor: devices of each")
    weights: str
    kv_cache: str
    kv_padding: float = Field(
        description="bytes as stored over the keys' and values' own: repeated heads, filled tiles"
    )
    batch: int = Field(description="sequences that decode together, over all copies")
    context: int
    prompt: int
    pages: int = Field(description="of each copy")
    memory: MemoryOfChip
    batches: list[LargestBatch]
    decode: StepReport
    prefill: StepReport
    at_floor: ServingRates
    estimate: ServingRates
    layers: int
    layers_compiled: list[int]
    compile_s: float
