"""vLLM in the place of the project's own engine: any model that it serves, on the same slices, behind the same HTTP."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ray_configs.base import Config, from_text

ONLY_JAX = {
    "quantize_weights": "vllm_args={'quantization': ...}",
    "quantize_kv_cache": "vllm_args={'kv_cache_dtype': 'fp8'}",
    "page_size": "vllm_args={'block_size': ...}",
    "pages": "vllm_args={'num_gpu_blocks_override': ...}",
    "memory_fraction": "vllm_args={'gpu_memory_utilization': ...}",
    "prefix_cache_host_gib": "vllm_args={'kv_offloading_size': ...}",
    "prefix_states": "",
    "expert_parallel": "vllm_args={'enable_expert_parallel': True}",
    "data_parallel": "more replicas (min_replicas)",
    "image_tokens": "",
    "max_image_tokens": "",
    "image_hosts": "",
    "attention": "vllm_args={'attention_backend': ...}",
    "compile_cache": "VLLM_CACHE_ROOT in the environment",
    "prepared_programs": "",
    "reranker": "",
    "speculation": "vllm_args={'speculative_config': {...}}",
    "max_draft_tokens": "vllm_args={'speculative_config': {...}}",
    "adapters": "",
    "max_adapters": "",
    "max_adapter_rank": "",
}
"""Fields that vLLM has nothing to do with, and what to write instead, if there is something."""

OURS = {
    "model": "model",
    "dtype": "dtype",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_step_tokens",
    "enable_prefix_caching": "prefix_cache",
    "tensor_parallel_size": "tensor_parallel",
    "served_model_name": "model_id",
    "api_key": "api_keys",
    "tool_call_parser": "tool_call_format",
    "reasoning_parser": "reasoning_format",
    "load_format": "random_weights",
    "hf_overrides": "tiny",
    "data_parallel_size": "min_replicas",
}
"""Arguments of `vllm serve` that a field of the config stands for."""
SET_HERE = (
    "model_tag", "host", "port", "uds", "headless", "nnodes", "node_rank", "master_addr", "master_port",
    "distributed_executor_backend", "data_parallel_rank", "data_parallel_start_rank", "data_parallel_size_local",
    "data_parallel_address", "data_parallel_rpc_port", "data_parallel_backend", "api_server_count", "config",
    "ssl_keyfile", "ssl_certfile", "root_path", "generation_config", "scheduling_policy", "structured_outputs_config",
    "kv_events_config", "enable_prompt_tokens_details", "stream_interval", "logprobs_mode", "runner", "grpc",
)  # fmt: skip
"""Those that decide how the process is started, and spoken to."""


class SecondEngine(Config):
    """Which engine computes the model's tokens."""

    engine: Literal["jax", "vllm"] = "jax"
    """jax: the project's own. vllm: vLLM, started beside each replica, on each host of its slice, for models that the
    other one does not have; it has an image of its own. Text, keys, limits, routers and HTTP stay the project's.

    `podslice plan` can't plan it; an answer that follows a grammar or has a presence or frequency penalty can't go on
    in another replica. The command is `vllm`, or what PODSLICE_VLLM says."""
    vllm_args: Annotated[dict[str, Any], from_text('{"enforce_eager": true}')] = Field(default_factory=dict)
    """More arguments of `vllm serve`, by their names with underscores: `{"gpu_memory_utilization": 0.9,
    "enforce_eager": true, "speculative_config": {"method": "ngram"}}`. `check` holds them against its `--help`."""

    @model_validator(mode="after")
    def _fields_of_the_engine(self) -> "SecondEngine":
        if self.engine == "jax":
            if self.vllm_args:
                raise ValueError("vllm_args is for engine='vllm': set it, or leave vllm_args out")
            return self
        fields = type(self).model_fields
        for name, instead in ONLY_JAX.items():
            if name in fields and getattr(self, name) != fields[name].get_default(call_default_factory=True):
                hint = f", and write {instead}" if instead else ""
                raise ValueError(f"{name} is not for engine='vllm': leave it out{hint}")
        for name in self.vllm_args:
            plain = name.replace("-", "_")
            if name != plain or not plain.isidentifier():
                raise ValueError(f"vllm_args: write {plain.strip('_')!r} for {name!r}: names have underscores")
            if name in OURS:
                raise ValueError(f"vllm_args: {name} has a field of its own: set {OURS[name]}")
            if name in SET_HERE:
                raise ValueError(f"vllm_args: {name} is set where vLLM is started; leave it out")
        return self
