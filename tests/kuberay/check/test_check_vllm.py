"""`vllm_args` of an application, against the recorded `vllm serve --help=all`."""

from typing import Any

import pytest

from kuberay.check import check
from kuberay.check.findings import Finding
from kuberay.render import render
from ray_configs.cluster.application import Application
from ray_configs.llm import LLMConfig
from ray_configs.service import Service


def found(**arguments: Any) -> list[Finding]:
    config = LLMConfig(engine="vllm", slice="v5e:2x4:8t", vllm_args=arguments)
    service = Service(name="mine", applications=[Application(config=config)])
    return [finding for finding in check(render(service), service) if finding.rule == "vllm-args"]


def test_good_ones_are_not_spoken_of() -> None:
    given = {"enforce_eager": True, "gpu_memory_utilization": 0.9, "kv_cache_dtype": "fp8", "block_size": 128}
    assert found(**given, async_scheduling=False, speculative_config={"method": "ngram"}) == []


@pytest.mark.parametrize(
    ("arguments", "why", "instead"),
    [
        ({"enforce_eger": True}, "no --enforce-eger", "write enforce_eager"),
        ({"warp": 9}, "no --warp", "remove it"),
        ({"enforce_eager": "yes"}, "is on or off: write true or false, not 'yes'", "--help=all"),
        ({"gpu_memory_utilization": True}, "takes a value, not true or false", "--help=all"),
        ({"kv_cache_dtype": "int3"}, "takes auto, bfloat16", "--help=all"),
    ],
)
def test_bad_ones_are_errors_in_their_place(arguments: dict[str, Any], why: str, instead: str) -> None:
    (finding,) = found(**arguments)
    assert finding.severity == "error" and why in finding.why and instead in finding.instead
    assert finding.where.endswith(f"vllm_args.{next(iter(arguments))}")


def test_what_only_one_version_takes_is_a_warning() -> None:
    (finding,) = found(kda_decode_backend="auto") or found(enable_bf16x3_router_gemm=True)
    assert finding.severity == "warning" and "0.29.0" in finding.why and "0.32.0" in finding.why
