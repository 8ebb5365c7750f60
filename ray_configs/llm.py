"""Configs of a language model: of its engine, and of the Serve application around it."""

from pathlib import Path
from typing import ClassVar, Literal, TypedDict

from pydantic import Field, field_validator, model_validator

from ray_configs.applications.batches import BatchesConfig
from ray_configs.applications.callers import ANONYMOUS, Callers
from ray_configs.applications.formats import ImageInput, ReasoningFormat, ToolCallFormat
from ray_configs.applications.kv_events import PublishedEvents
from ray_configs.applications.replicas import AppConfig
from ray_configs.applications.roots import ModelRoots, NamedLocations
from ray_configs.applications.scaling import ScalingConfig
from ray_configs.applications.second_engine import SecondEngine

DEMO_MODEL = str(Path(__file__).resolve().parent.parent / "apps" / "llm" / "demo" / "model")

TINY_BATCH, TINY_STEP_TOKENS, TINY_MODEL_LEN, TINY_HOST_GIB = 8, 8, 512, 0.1
"""Largest sizes of a tiny model. The step is the smallest possible, so only one is compiled."""

ROUTERS = 2
"""In front of several replicas: one may end, and the other answers."""
STORED_RESPONSES = 1000
"""Default of `stored_responses` where a service has one replica."""


class EngineConfig(SecondEngine, ImageInput):
    """What one engine (one replica's JAX program, or vLLM) loads and how large it may grow."""

    model: str = DEMO_MODEL
    """A checkpoint in Hugging Face layout: a local folder, a hub id such as `meta-llama/Llama-3.2-1B`, or an fsspec URL
    (gs://...). Or one prepared by `python -m apps.jobs.prepare`, which loads faster.

    Or one of Saxml's test models, which have no weights: `lm_cloud.LmCloudSpmd175B32Test` with `random_weights`."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of weights, activations and KV cache, unless they are quantized."""
    quantize_weights: Literal["none", "int8"] = "none"
    """int8: one scale per output channel, computed while loading; halves what a decode step reads.

    A checkpoint prepared as int8 stays int8 in any case."""
    quantize_kv_cache: Literal["none", "int8", "fp8"] = "none"
    """int8: static scales per layer and channel, calibrated at startup; twice the tokens in the same memory. fp8: E4M3
    without scales, as small as int8: less exact, but keys and values that no calibration has seen are not clipped."""
    random_weights: bool = False
    """Ignore the checkpoint's tensors and draw random ones: for load tests with nothing but a config.json."""
    tiny: bool = False
    """The same architecture and sharding at toy width, with few layers and random weights: for trying a service without
    TPUs. A model that cannot be read (a hub id offline, a bucket) becomes a toy Llama with a byte tokenizer."""
    tiny_layers: int = Field(2, ge=1)
    """Layers of a `tiny` model, at most the model's own. Two cover both of Gemma 2's kinds of layer."""
    max_model_len: int | None = Field(None, ge=16)
    """Longest sequence in tokens, prompt and answer together; default: the model's own limit."""
    max_batch_size: int = Field(32, ge=1, le=4096)
    """Sequences that decode together; with `data_parallel`, each DP rank takes an equal share of them."""
    max_step_tokens: int = Field(512, ge=8)
    """Token budget of a step: decodes first, then chunks of prefill."""
    page_size: int = Field(32, ge=8, le=128)
    """Tokens in a page of the KV cache, a power of two. Prefixes are reused in whole pages."""
    pages: int | None = Field(None, ge=2)
    """KV cache pages of each DP rank; default: what fits in `memory_fraction` of the free memory, and at most what a
    full batch needs."""
    memory_fraction: float = Field(0.85, gt=0, le=0.98)
    """Share of the device memory left after loading that the KV cache may take (on a CPU, half of it)."""
    prefix_cache: bool = True
    """Reuse the KV pages of a prefix that an earlier prompt shares."""
    prefix_cache_sharing: Literal["key", "all"] = "key"
    """Whose earlier prompts those are. key: prompts of API keys with the same name, or with the same `cache_group` in
    `callers`, so that neither `cached_tokens` nor the time to the first token tells a caller what another one has
    asked; a prefix that several callers share is computed and kept for each. all: everyone's.

    Clients without a key share one cache. A request's `cache_salt` divides any of them further."""
    prefix_cache_host_gib: float = Field(0, ge=0)
    """Memory of each host, in GiB, for pages of the prefix cache that lose their place on the devices. Measured at
    startup: it stays unused where computing a page is quicker than copying it."""
    prefix_states: int | None = Field(None, ge=1)
    """Of a model with linear attention: states kept for prefixes, over all DP ranks; default: `max_batch_size`. One
    takes as much device memory as a sequence in the batch does besides its pages."""
    kv_events: PublishedEvents = None
    """Publishes what the prefix cache stores and forgets, as vLLM does, for routers that follow it. On a command line:
    `kv_events='{"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:6557"}'`."""
    tensor_parallel: int | None = Field(None, ge=1)
    """Devices over which each layer is split; default: with `data_parallel`, the devices of each DP rank."""
    expert_parallel: int | None = Field(None, ge=1)
    """Groups of a DP rank's devices over which a mixture's experts are split; a group's devices share the width of its
    experts. Default: each expert whole on one device where `tensor_parallel` divides their number, or else as few
    devices to a group as divide it. Fewer groups share the work of a small batch more evenly."""
    data_parallel: int | None = Field(None, ge=1)
    """DP ranks: copies of the model side by side in one replica, each over `tensor_parallel` devices.

    A request goes to the rank with the fewest tokens to compute: those of its prompt that the rank's prefix cache
    lacks, and those that wait there. Default: with `tensor_parallel`, as many as the slice has devices for. With
    neither, on a slice: the split with the shortest decode step by the slice's peak figures (`python -m apps.llm.plan`
    prints it); without a slice: one rank over every accelerator of the host, or over one CPU device."""
    max_load_share: float = Field(1.05, ge=1)
    """Most work of a DP rank, as a multiple of the mean. Beyond it, a cached prefix draws no more requests there. The
    work counted is of prompts, in tokens computed; half of it is forgotten in ten minutes."""
    attention: Literal["auto", "xla", "pallas", "cpu"] = "auto"
    """auto: the Pallas kernel on TPU, native kernels on CPU (if head_dim is a multiple of 16), plain XLA elsewhere."""
    compile_cache: str | None = "~/.cache/podslice/jax"
    """Folder of JAX's persistent compilation cache, or a bucket's: a second start compiles nothing. None: no cache."""
    prepared_programs: str | None = None
    """Folder or URL of programs that `podslice prepare CONFIG --to` compiled. Default: below a prepared `model`."""
    tool_call_format: ToolCallFormat = "auto"
    """How the model writes tool calls: `hermes` (Qwen's too), `qwen3_coder` (Qwen3.5's too), `llama` (Llama 3's JSON),
    `pythonic`, `mistral`, `gemma`, `deepseek`, `harmony` (gpt-oss's), `atem` (Muse Glimmer's), or plain `json`. auto:
    detected from its chat template; none: requests with tools are refused."""
    reasoning_format: ReasoningFormat = "auto"
    """The tags around the model's reasoning, which is returned apart from its answer: `think` (`<think>`), `mistral`
    (`[THINK]`) or `gemma` (Gemma 4's `<|channel>`). auto: detected from its chat template (or gpt-oss's channel, or
    Muse Glimmer's recipient); none: reasoning is left in the answer."""
    sampling_defaults: Literal["model", "neutral"] = "model"
    """Values of temperature, top_k, top_p, min_p, repetition_penalty and max_tokens where a request names none. model:
    those of the checkpoint's generation_config.json, as vLLM has it. neutral: none of them, so temperature 1 and top_p
    1, as OpenAI's API has it. JetStream's and Saxml's requests have defaults of their own."""
    reranker: Literal["auto", "none", "qwen3"] = "auto"
    """How `/v1/rerank` and `/v1/score` judge a document. qwen3: by the probability of `yes` after Qwen3-Reranker's
    prompt. none: by the cosine of embeddings. auto: qwen3 for a Qwen3 whose config.json says that it is a classifier
    (`Qwen3ForSequenceClassification`, `classifier_from_token`) or whose name has `Qwen3-Reranker`; otherwise none."""
    speculation: Literal["ngram", "off"] = "ngram"
    """ngram: draft tokens by looking up repeated n-grams in the prompt and the answer, and verify them in rows of the
    step that the batch leaves free. Faster where an answer repeats text (edited documents, code, JSON); never changes
    it."""
    max_draft_tokens: int = Field(15, ge=1, le=127)
    """Most draft tokens of a sequence in a step. The number in use adapts to the acceptance rate and to step times
    measured at startup."""
    adapters: NamedLocations = Field(default_factory=dict)
    """LoRA adapters to load at startup, by name: each a folder in PEFT's layout, a hub id or an fsspec URL. A request
    picks one as its `model`, by its name or as `base:name`. On a command line: `adapters='{"sql": "/adapters/sql"}'`.

    With `tiny` they are not read, but drawn at random."""
    max_adapters: int | None = Field(None, ge=0, le=256)
    """Places for adapters on the devices. Each step computes all of them, whether taken or not. Default: as many as
    `adapters` names."""
    max_adapter_rank: Literal[8, 16, 32, 64, 128] = 16
    """Highest rank of an adapter. All are padded to it."""
    model_roots: ModelRoots | None = None
    """Folders and URL prefixes (`/adapters,gs://bucket/loras`) below which `/v1/load_lora_adapter` may load adapters.
    Default: it loads only hub ids, and what `adapters` names. If set, links below them may not lead out of them, and
    `OWNER/NAME` is always a hub id, never a relative folder. A cell sets it to its own."""
    max_waiting: int = Field(256, ge=1)
    """Requests that may wait for a slot in the batch; one more is refused with 429 and Retry-After.

    When one caller has filled the queue, others are still admitted up to their shares."""
    callers: Callers = Field(default_factory=dict)
    """Weights and limits (`CallerConfig`) by the names of API keys; `default` is the name of keys without one.
    `anonymous` applies to clients without a key, to each address separately. On a command line:
    `callers='{"alice": {"weight": 3}}'`."""

    @field_validator("page_size")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(f"page_size must be a power of two, such as 16, 32 or 64, not {value}")
        return value

    def prefix_cache_of(self, caller: str) -> str:
        """The part of the prefix cache that a caller's requests share, by its name; empty: the one of all."""
        if self.prefix_cache_sharing == "all" or caller == ANONYMOUS:
            return ""
        config = self.callers.get(caller)
        return f"key {caller}" if config is None or config.cache_group is None else f"group {config.cache_group}"

    @property
    def adapter_capacity(self) -> int:
        """`max_adapters`, with its default."""
        return len(self.adapters) if self.max_adapters is None else self.max_adapters

    @model_validator(mode="after")
    def _fields_agree(self) -> "EngineConfig":
        if len(self.adapters) > self.adapter_capacity:
            raise ValueError(f"adapters names {len(self.adapters)}, but max_adapters is {self.max_adapters}: raise it")
        if "" in self.adapters:
            raise ValueError("adapters: a name must not be empty")
        for name in ("prefix_cache_host_gib", "prefix_states"):
            if getattr(self, name) and not self.prefix_cache:
                raise ValueError(f"{name} is for the prefix cache, which prefix_cache=false turns off")
        if self.max_step_tokens < self.max_batch_size:
            least = (
                f"at least max_batch_size ({self.max_batch_size}): a step holds one token for each decoding sequence"
            )
            raise ValueError(f"max_step_tokens ({self.max_step_tokens}) must be {least}")
        return self


class AdapterSource(TypedDict):
    """A LoRA adapter that running replicas load, as Serve's `user_config` passes it."""

    location: str
    """A folder in PEFT's layout, a hub id or an fsspec URL."""
    version: int
    """With another one, the same location is read again."""


class LLMConfig(AppConfig, ScalingConfig, BatchesConfig, EngineConfig):
    """One language model as a Serve application: `serve run apps.llm:build model=PATH max_batch_size=64 ...`."""

    import_path: ClassVar[str] = "apps.llm:build"
    default_name: ClassVar[str] = "llm"

    model_id: str | None = None
    """Name in /v1/models and in requests' `model`; default: the last part of `model` (the demo is `podslice-demo`)."""
    max_ongoing_requests: int = Field(512, ge=1)
    """Requests in flight at one replica (running and waiting, streams included); more wait in Serve's queue."""
    max_queued_requests: int = Field(256, ge=0)
    """Size of Serve's queue; one more request is refused with 503 and Retry-After."""
    health_step_deadline_s: float = Field(60, gt=0)
    """A step longer than this counts as stuck: its requests end with an error, the replica fails its health check."""
    drain_timeout_s: float = Field(120, ge=0)
    """How long a stopping replica waits for its requests in flight. On Kubernetes, node drains wait for it too, but a
    preempted Spot machine leaves 105 seconds, or 15: see `Spot`."""

    routers: int | None = Field(None, ge=0, le=64)
    """Processes without chips that take the requests, hold text, keys, limits and batches, and give tokens to the
    replicas, which are engines alone then. An answer whose replica dies, hangs or is stopped goes on in another one,
    word for word; with none left it waits. 0: each replica answers for itself. None: 2 with more than one replica; in a
    service also 1 for a single one whose machines may be taken away (Spot, flex-start, queued). Limits of `callers`
    hold over all routers. On GKE they have CPU Pods of their own, on demand."""
    stored_responses: int | None = Field(None, ge=0)
    """Most recent answers of `/v1/responses` that a replica keeps in memory for `previous_response_id` and GET, at most
    256 MiB in all. 0: none. Default: 1000 with `max_replicas` 1, or 1 of `routers`, else 0, because they do not share
    them."""
    tokenizer_info: bool = False
    """Answer `GET /tokenizer_info`, as vLLM does with its flag: the tokenizer's config and the chat template."""
    adapter_loading: bool = False
    """Answer `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM does with its setting: whoever may ask the
    model may then have it read any adapter of the hub, and those below `model_roots`. Needs `max_adapters`, and one
    replica or one of `routers`."""

    @model_validator(mode="after")
    def _adapters_can_be_loaded(self) -> "LLMConfig":
        if self.served_name in self.adapters:
            raise ValueError(f"adapters: {self.served_name} is the model's own name; choose another")
        if self.adapter_loading and not self.adapter_capacity:
            raise ValueError("adapter_loading needs places for adapters: set max_adapters")
        if self.adapter_loading and self.answering != 1:
            raise ValueError(
                "adapter_loading reaches only the replica that takes the request: set max_replicas 1, or one of "
                "`routers`, or name the adapters in `adapters`, which every replica loads"
            )
        return self

    @model_validator(mode="after")
    def _targets_can_be_met(self) -> "LLMConfig":
        for name in self.scaling_targets:
            if self.max_replicas == self.min_replicas:
                raise ValueError(f"{name} changes nothing: max_replicas is min_replicas; raise it, or leave {name} out")
            if not self.router_count:
                raise ValueError(f"{name} needs replicas behind routers, which say what they have to do: set routers=1")
        return self

    @property
    def image_name(self) -> str:
        return "llm-vllm" if self.engine == "vllm" else "llm"

    @property
    def all_cpus(self) -> float:
        """CPUs that its processes ask for together."""
        return super().all_cpus + self.router_count * self.num_cpus

    @property
    def answering(self) -> int:
        """Processes that answer requests, at most."""
        return self.router_count or self.max_replicas

    @property
    def router_count(self) -> int:
        """`routers`, with its default."""
        if self.routers is None:
            return ROUTERS if self.max_replicas > 1 else 0
        return self.routers

    @property
    def kept_responses(self) -> int:
        """`stored_responses`, with its default."""
        if self.stored_responses is None:
            return STORED_RESPONSES if self.answering == 1 else 0
        return self.stored_responses

    @property
    def served_name(self) -> str:
        if self.model_id:
            return self.model_id
        if self.model == DEMO_MODEL:
            return "podslice-demo"
        return self.model.rstrip("/").rsplit("/", 1)[-1]

    def as_tiny(self) -> "LLMConfig":
        """A tiny random model of the same architecture and sharding, for trying a service without TPUs. Batch, step and
        length are bounded too: each step shape is a program to compile, on every host."""
        step = TINY_STEP_TOKENS + (self.image_tokens and self.max_image_tokens)  # some models need an image in one step
        return self.model_copy(
            update={
                "tiny": True,
                "max_model_len": min(self.max_model_len or TINY_MODEL_LEN, TINY_MODEL_LEN),
                "max_batch_size": min(self.max_batch_size, TINY_BATCH),
                "max_step_tokens": min(self.max_step_tokens, step),
                "prefix_cache_host_gib": min(self.prefix_cache_host_gib, TINY_HOST_GIB),
            }
        )
