"""The application as Serve sees it: its builder, its options, its metrics."""

import re
import subprocess
import sys
import urllib.request

import pytest

from apps.llm.server import build
from apps.serving.replica_options import options
from ray_configs.llm import LLMConfig
from tests.llm.serve.serving import REPOSITORY, serve_cli, wait_until


@pytest.mark.slow
def test_serve_run_refuses_bad_arguments_in_pydantics_words():
    done = serve_cli("run", "apps.llm:build", "max_batch_size=many", "batch_size=4", "slice=v5e")
    assert done.returncode != 0 and "3 validation errors for LLMConfig" in done.stderr
    for said in ("max_batch_size", "Extra inputs are not permitted", "GENERATION:TOPOLOGY"):
        assert said in done.stderr


def test_importing_the_application_is_cheap():
    heavy = "sorted(m for m in ('jax', 'torch', 'transformers', 'apps.llm.engine') if m in sys.modules)"
    code = f"import sys, apps.llm; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_demo_application():
    from ray import serve

    from apps.llm import app, build

    assert isinstance(app, serve.Application) and isinstance(build(LLMConfig(max_batch_size=4)), serve.Application)


def test_options_on_a_cpu():
    cpu = options(LLMConfig())
    assert cpu["num_replicas"] == 1 and cpu["ray_actor_options"] == {"num_cpus": 1}
    assert cpu["backpressure_config"] == {"status_code": 503, "retry_after_s": 2.0}


def test_options_on_a_slice_that_scales():
    config = LLMConfig(slice="v5e:2x4:8t", min_replicas=0, max_replicas=3, target_ongoing_requests=10)
    tpu = options(config)
    assert tpu["ray_actor_options"]["resources"] == {"TPU": 8}
    assert tpu["ray_actor_options"]["label_selector"] == {"ray.io/tpu-pod-type": "v5litepod-8"}
    assert tpu["autoscaling_config"] == {
        "min_replicas": 0,
        "max_replicas": 3,
        "target_ongoing_requests": 10,
        "downscale_to_zero_delay_s": None,
    }
    assert "num_replicas" not in tpu


def test_a_slice_that_ray_cannot_place_is_refused_before_anything_starts():
    with pytest.raises(ValueError, match="v3:4x4 cannot be used by a replica: Ray's autoscaler does not know"):
        build(LLMConfig(slice="v3:4x4"))


def test_a_replica_of_several_hosts_lives_on_the_slice_that_it_will_own():
    config = LLMConfig(slice="v5e:4x8", min_replicas=2, max_replicas=2)
    tpu = options(config)
    assert tpu["max_replicas_per_node"] == 1 and tpu["health_check_period_s"] == 1
    assert "resources" not in tpu["ray_actor_options"], "it reserves the chips of all hosts itself"
    home = tpu["ray_actor_options"]["label_selector"]
    assert home == {"ray.io/tpu-worker-id": "0", "ray.io/tpu-pod-type": "v5litepod-32"}
    assert tpu["ray_actor_options"]["fallback_strategy"] == [{"label_selector": {}}]


def test_keys_do_not_travel():
    application = build(LLMConfig(api_keys="secret-one,secret-two"))
    bound = application._bound_deployment
    assert "secret-one" not in repr((bound.init_args, bound.init_kwargs)) and bound.init_args[0].api_keys == ()
    assert len(bound.init_args[1]) == 2


def test_metrics_reach_rays_endpoint(llm_url, client):
    import ray

    text = "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday. " * 8
    for _ in range(2):
        client.completions.create(model="podslice-demo", prompt=text, max_tokens=8)
    port = ray.nodes()[0]["MetricsExportPort"]

    def published() -> dict[str, float] | None:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        lines = re.findall(r"^ray_(podslice_\w+)\{([^}]*)\} (\S+)$", page, re.MULTILINE)
        values = {name: float(value) for name, tags, value in lines if 'model="podslice-demo"' in tags}
        wanted = {
            "podslice_requests_running",
            "podslice_requests_waiting",
            "podslice_kv_pages_used",
            "podslice_kv_pages_total",
            "podslice_prompt_tokens_total",
            "podslice_generated_tokens_total",
            "podslice_prefix_hit_tokens_total",
            "podslice_compiles_after_ready",
            "podslice_time_to_first_token_s_count",
            "podslice_time_per_output_token_s_count",
        }
        return values if wanted <= set(values) and values["podslice_prefix_hit_tokens_total"] > 0 else None

    values = wait_until(published)
    assert values["podslice_kv_pages_total"] > 0 and values["podslice_time_to_first_token_s_count"] >= 2
