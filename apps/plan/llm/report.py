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
    images: float = Field(0, description="the vision tower, the encoded images, and what encoding takes")
    programs: float = Field(description="code of all compiled steps, most of it interpolated")
    total: float
    peak_by_compiler: float = Field(description="the compiler's own figure for the largest step alone")
    usable: float = Field(description="what the compiler lets programs use of the chip's HBM")
    fits: bool


class LargestBatch(Part):
    context: int = Field(description="tokens of each sequence, prompt and answer")
    batch: int = Field(description="sequences of that length whose KV cache fits, over all DP ranks")


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
    prefill_tokens_per_s: float = Field(description="of prompts, with nothing else: llm-d's peakPrefillThroughput")
    sequence_in_prompt_tokens: float = Field(
        description="how many tokens of a prompt take as long as one more sequence in a decode step, for routers"
    )

    @classmethod
    def of(
        cls, steps: tuple[float, float], first_token_s: float, prefill_tokens_per_s: float, batch: int, chips: int
    ) -> Self:
        """Computed for one replica's slice. `steps`: seconds of a decode step of one sequence, and of `batch`."""
        lone_s, step_s = steps
        tokens = batch / step_s
        return cls(
            time_per_token_ms=step_s * 1e3,
            tokens_per_s_per_slice=tokens,
            time_to_first_token_ms=first_token_s * 1e3,
            chips_per_million_tokens_an_hour=chips * TOKENS_AN_HOUR / 3600 / tokens,
            prefill_tokens_per_s=prefill_tokens_per_s,
            sequence_in_prompt_tokens=(step_s - lone_s) / max(1, batch - 1) * prefill_tokens_per_s,
        )


class ExpertsReport(Part):
    """A decode step's load of a mixture of experts on one copy of the model, by draws at random."""

    tokens: int
    count: int
    per_token: int
    groups: int = Field(description="of devices, which have different experts; those of a group share their width")
    read: float = Field(description="share of them that some token picks, if all are picked equally often")
    busiest: float = Field(description="tokens on the busiest device over those on the average one, likewise")
    uneven_read: float = Field(description="read, if the r-th most popular is wanted in proportion to r ** -0.5")
    uneven_busiest: float = Field(description="busiest, likewise")
    batch_of_all: int = Field(description="tokens of a step from which over 99 of 100 are read, picked equally often")
    ici_bytes: float = Field(description="of the step's: what each device sends to add up the devices' experts")

    def sentence(self) -> str:
        return (
            f"A token takes {self.per_token} of {self.count} experts. If all are picked equally often, a decode step "
            f"of {self.tokens} sequences reads {self.read:.0%} of them, and one of {self.batch_of_all} nearly all; the "
            f"busiest device has {self.busiest:.2f} times the average one's tokens. If the r-th most popular is wanted "
            f"in proportion to 1 / sqrt(r), {self.uneven_read:.0%} and {self.uneven_busiest:.2f} times. Each device "
            f"sends {self.ici_bytes / 1e6:.1f} MB to add up what the experts made."
        )


class LLMPlan(Plan):
    architecture_from: str
    parameters: float
    active_parameters: float = Field(description="those that one token is multiplied by, and the embeddings")
    hosts: int
    mesh: dict[str, int] = Field(description="data: DP ranks; tensor: devices of each")
    weights: str
    kv_cache: str
    kv_padding: float = Field(
        description="bytes as stored over the keys' and values' own: repeated heads, filled tiles"
    )
    batch: int = Field(description="sequences that decode together, over all DP ranks")
    context: int
    prompt: int
    pages: int = Field(description="of each copy")
    memory: MemoryOfChip
    batches: list[LargestBatch]
    experts: ExpertsReport | None = Field(description="None: the model has none")
    decode: StepReport
    prefill: StepReport
    at_floor: ServingRates
    estimate: ServingRates
    layers: int
    layers_compiled: list[int]
    compile_s: float
