"""The plan as it is printed or written as JSON. Everything in it is computed; nothing was measured on a TPU."""

from pydantic import BaseModel, ConfigDict, Field

LABEL = (
    "computed, not measured: XLA's TPU compiler, run without a TPU, and published peak figures; the attention kernel's "
    "share is worked out by hand from its loops, for the compiler cannot see into it"
)


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class MemoryOfChip(Part):
    """GiB on each chip."""

    weights: float
    kv_cache: float
    other: float = Field(description="sampling state and the step's inputs")
    temporaries: float = Field(description="of the step that needs most")
    programs: float = Field(description="code of all compiled steps, the largest standing for each")
    total: float
    peak_by_compiler: float = Field(description="the compiler's own figure for the largest step alone")
    usable: float = Field(description="what the compiler lets programs use of the chip's HBM")
    fits: bool


class Batches(Part):
    context: int = Field(description="tokens of each sequence, prompt and answer")
    batch: int = Field(description="sequences of that length whose KV cache fits, over all copies")


class Step(Part):
    """One step on each chip; seconds where the name ends in _s."""

    tokens: int
    sequences: int
    context: int = Field(description="tokens in each sequence's KV cache")
    flops: float
    hbm_bytes: float = Field(description="counted over the compiled program, and the kernel's by hand")
    kernel_hbm_bytes: float = Field(description="of these, the attention kernel's, by hand")
    kernel_flops: float = Field(description="by hand, as it computes them: masked positions too")
    weights_and_live_kv_bytes: float = Field(description="each weight and each live key and value once, as stored")
    hbm_over_least: float = Field(description="hbm_bytes over weights_and_live_kv_bytes")
    compiler_bytes_accessed: float = Field(description="the compiler's own count; VMEM counts there too")
    ici_bytes: float = Field(description="sent to other chips, by the ring algorithms")
    compute_s: float
    hbm_s: float
    ici_s: float
    floor_s: float = Field(description="the longest of the three")
    compiler_s: float | None = Field(description="the compiler's cycles: no HBM copies, collectives or kernels in them")
    kernel_s: float
    estimate_s: float = Field(description="max(compiler, HBM without kernel) + kernel + interconnect, one by one")


class Serving(Part):
    """What follows from the steps, `at_floor` and `estimate`."""

    time_per_token_ms: float
    tokens_per_s_per_slice: float
    time_to_first_token_ms: float
    chips_per_million_tokens_an_hour: float


class Plan(Part):
    label: str = LABEL
    model: str
    architecture_from: str
    parameters: float
    slice: str
    chips: int
    hosts: int
    devices_per_chip: int
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
    batches: list[Batches]
    decode: Step
    prefill: Step
    at_floor: Serving
    estimate: Serving
    layers: int
    layers_compiled: list[int]
    compile_s: float
    notes: list[str]
