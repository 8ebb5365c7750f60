"""vLLM's /metrics and /tokenizer_info, over the demo model."""

import threading
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from apps.llm.http.app import http_app
from apps.serving.ingress.api_keys import principals
from tests.llm.serve.serving import MODEL, held, wait_until


def scraped(server: Any) -> dict[str, tuple[dict[str, str], float]]:
    """Metric -> labels and value."""
    reply = httpx.get(f"{server.url}/metrics")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(reply.text))
    assert all(family.type == "gauge" and len(family.samples) == 1 for family in families)
    return {family.samples[0].name: (family.samples[0].labels, family.samples[0].value) for family in families}


def test_metrics_are_the_load_under_vllms_names(crowded_server):
    wait_until(lambda: crowded_server.engine.stats().running == 0)
    config = crowded_server.engine.config
    found = scraped(crowded_server)
    pages = crowded_server.engine.stats().pages_total
    assert found.pop("vllm:cache_config_info") == (
        {"block_size": str(config.page_size), "num_gpu_blocks": str(pages)},
        1,
    )
    names = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc")
    assert found == {name: ({"model_name": MODEL}, 0) for name in names}
    body = {"prompt": "x", "max_tokens": 2, "n": config.max_batch_size + 1}
    with held(crowded_server.engine):
        request = threading.Thread(
            target=httpx.post, args=(f"{crowded_server.url}/v1/completions",), kwargs={"json": body}
        )
        request.start()
        wait_until(lambda: crowded_server.engine.stats().running == config.max_batch_size)
        found = scraped(crowded_server)
    request.join()
    assert found["vllm:num_requests_running"][1] == config.max_batch_size
    assert found["vllm:num_requests_waiting"][1] == 1
    assert found["vllm:kv_cache_usage_perc"][1] == pytest.approx(config.max_batch_size / pages)


def test_metrics_need_no_key_and_the_tokenizer_one(crowded_server):
    client = TestClient(http_app(crowded_server.model, principals(["key"]), tokenizer_info=True))
    assert client.get("/metrics").status_code == 200
    assert client.get("/tokenizer_info").status_code == 401


def test_tokenizer_info_is_off_unless_configured(crowded_server):
    reply = httpx.get(f"{crowded_server.url}/tokenizer_info")
    assert reply.status_code == 404 and "tokenizer_info" in reply.json()["error"]["message"]


def test_tokenizer_info(crowded_server):
    info = TestClient(http_app(crowded_server.model, tokenizer_info=True)).get("/tokenizer_info").json()
    assert info["chat_template"] == crowded_server.engine.tokenizer.chat_template
    assert (info["bos_token"], info["eos_token"]) == ("<|bos|>", "<|eos|>")
    assert info["tokenizer_class"] and info["added_tokens_decoder"]["0"] == "<|pad|>"
    assert "/" not in "".join(
        value for name, value in info.items() if isinstance(value, str) and name != "chat_template"
    )
