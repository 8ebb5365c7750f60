"""engine="vllm": what it takes, and what it refuses by name."""

from typing import Any

import pytest
from pydantic import ValidationError

from ray_configs.applications.second_engine import ONLY_JAX, OURS, SET_HERE
from ray_configs.cluster.application import Application
from ray_configs.llm import EngineConfig, LLMConfig
from ray_configs.service import Service

OTHER: dict[str, Any] = {
    "quantize_weights": "int8",
    "quantize_kv_cache": "fp8",
    "page_size": 64,
    "pages": 100,
    "memory_fraction": 0.5,
    "prefix_cache_host_gib": 1,
    "prefix_states": 4,
    "expert_parallel": 2,
    "data_parallel": 2,
    "image_tokens": 2048,
    "max_image_tokens": 512,
    "image_hosts": "a.example",
    "attention": "xla",
    "compile_cache": None,
    "prepared_programs": "/programs",
    "reranker": "qwen3",
    "speculation": "off",
    "max_draft_tokens": 3,
    "adapters": {"sql": "/sql"},
    "max_adapters": 2,
    "max_adapter_rank": 32,
}


def refusal(**settings: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        LLMConfig(**{"engine": "vllm"} | settings)
    return str(refused.value)


def test_every_field_of_the_other_engine_is_one() -> None:
    assert OTHER.keys() == ONLY_JAX.keys()
    assert ONLY_JAX.keys() <= EngineConfig.model_fields.keys()


@pytest.mark.parametrize("field", OTHER)
def test_fields_of_the_other_engine_are_refused_by_name(field: str) -> None:
    more: dict[str, Any] = {"adapters": {"max_adapters": 1}, "image_hosts": {"image_tokens": 2048}}.get(field, {})
    assert f"{field} is not for engine='vllm': leave it out" in refusal(**{field: OTHER[field]} | more) or more
    default = LLMConfig.model_fields[field].get_default(call_default_factory=True)
    LLMConfig(**{"engine": "vllm", field: default})  # as a config is that was dumped and read again


@pytest.mark.parametrize("name", [*OURS, *SET_HERE])
def test_arguments_that_are_set_otherwise_are_refused(name: str) -> None:
    said = refusal(vllm_args={name: "x"})
    assert f"vllm_args: {name} {'has a field of its own' if name in OURS else 'is set where'}" in said
    if name in OURS:
        assert OURS[name] in LLMConfig.model_fields


def test_names_are_written_with_underscores() -> None:
    assert "write 'enforce_eager' for '--enforce-eager'" in refusal(vllm_args={"--enforce-eager": True})


def test_arguments_without_the_engine_are_refused() -> None:
    assert "vllm_args is for engine='vllm'" in refusal(engine="jax", vllm_args={"enforce_eager": True})


def test_it_survives_being_written_and_read() -> None:
    config = LLMConfig(engine="vllm", slice="v6e:2x2", vllm_args={"speculative_config": {"method": "ngram"}})
    assert LLMConfig.model_validate_json(config.model_dump_json()) == config
    assert LLMConfig(engine="vllm", vllm_args='{"enforce_eager": true}').vllm_args == {"enforce_eager": True}
    assert config.as_tiny().tiny and config.as_tiny().engine == "vllm"


def test_engines_have_their_image_and_what_stands_before_them_the_plain_one() -> None:
    config = LLMConfig(engine="vllm", slice="v5e:4x4", max_replicas=2)
    groups = Service(name="s", applications=[Application(config=config)]).worker_groups
    images = {group.name: group.image.rpartition("/")[2] for group in groups}
    assert sorted(images.values()) == ["llm-vllm:0.1.0", "llm:0.1.0", "llm:0.1.0"]
    assert next(image for name, image in images.items() if "router" in name) == "llm:0.1.0"
    service = Service(name="s", applications=[Application(config=config, image="mine:1")])
    assert {group.image for group in service.worker_groups} == {service.head_image} == {"mine:1"}
