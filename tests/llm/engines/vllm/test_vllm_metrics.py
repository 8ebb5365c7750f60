"""Stats from vLLM's `/metrics`. The text is vLLM 0.32's, cut down."""

import pytest

from apps.llm.engines.vllm import metrics

TEXT = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="model"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="model"} 0.25
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="model"} 20.0
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="model",source="local_compute"} 20.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="model"} 3.0
vllm:generation_tokens_total{engine="1",model_name="model"} 4.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="model"} 1.0
vllm:iteration_tokens_total_count{engine="0",model_name="model"} 5.0
vllm:iteration_tokens_total_sum{engine="0",model_name="model"} 22.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="8192",sliding_window="None"} 1.0
"""


def test_stats() -> None:
    size = metrics.cache_size(TEXT)
    assert size == metrics.CacheSize(128, 8192)
    found = metrics.stats(metrics.samples(TEXT), size, running=2, waiting=1, silent_s=0.5)
    assert (found.running, found.waiting, found.step_running_s) == (2, 1, 0.5)
    assert (found.pages_total, found.pages_used) == (8192, 2048)
    assert (found.prompt_tokens, found.generated_tokens, found.steps) == (20, 7, 5)
    assert found.preemptions == found.drafted_tokens == 0


def test_a_version_without_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match="has no vllm:cache_config_info"):
        metrics.cache_size("vllm:num_requests_running 1.0\n")
    with pytest.raises(ValueError, match="has no sizes"):
        metrics.cache_size('vllm:cache_config_info{block_size="None"} 1.0\n')
