"""A service made small enough for a laptop, and every change said."""

import pytest

from kuberay.local import LocalError
from kuberay.local.hosts import plan_of
from kuberay.local.memory import HEAD_GB, HOST_GB
from kuberay.local.scaling_down import scale_down
from kuberay.render import render
from ray_configs.cell import CellConfig
from ray_configs.cloud import Bucket
from ray_configs.llm import LLMConfig
from ray_configs.loading import load
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import DEMO_MODEL, StableDiffusionConfig


def one(**config: object) -> Service:
    return Service(name="s", applications=(Application(config=LLMConfig(**config)),))


def test_nothing_changes_unasked():
    service = one(slice="v5e:4x8", max_batch_size=16)
    scaled = scale_down(service)
    assert scaled.service == service and scaled.notes == ()


def test_tiny_keeps_the_slice_and_lowers_the_sizes():
    scaled = scale_down(load("ray_configs.catalog.spmd_175b"), tiny=True)
    config = scaled.service.applications[0].config
    assert config.tiny and str(config.slice) == "v5e:4x8" and config.min_replicas == 2
    assert (config.max_batch_size, config.max_step_tokens, config.max_model_len) == (8, 8, 256)
    (sentence,) = scaled.notes
    assert "lm_cloud.LmCloudSpmd175B32Test" in sentence and "max_batch_size 8" in sentence
    assert "max_model_len" not in sentence  # the config's own is small enough


def test_a_tiny_models_pages_take_little_host_memory():
    scaled = scale_down(one(slice="v5e:4x8", prefix_cache_host_gib=100), tiny=True)
    assert scaled.service.applications[0].config.prefix_cache_host_gib == 0.1
    assert "prefix_cache_host_gib 0.1" in scaled.notes[0]
    assert scale_down(one(slice="v5e:4x8"), tiny=True).service.applications[0].config.prefix_cache_host_gib == 0


def test_tiny_pictures_are_the_demo_models():
    scaled = scale_down(load("ray_configs.catalog.stable_diffusion_v4"), tiny=True)
    config = scaled.service.applications[0].config
    assert (config.model, config.sizes, config.dtype) == (DEMO_MODEL, ("64x64",), "float32")
    assert str(config.slice) == "v4:2x2x1" and config.max_batch_size == 16
    assert config.served_name == "stable-diffusion-v1-4"  # requests need not change
    assert scaled.notes == ("stable-diffusion: the demo model at 64x64 instead of CompVis/stable-diffusion-v1-4",)


def test_tiny_pictures_have_nothing_of_another_models():
    own = {"tokenizer": "/t", "vae": "a/b", "loras": {"ink": "/ink"}, "safety_checker": "c/d", "max_prompt_tokens": 150}
    config = StableDiffusionConfig(model="/models/mix.safetensors", prediction="epsilon", **own)
    scaled = scale_down(Service(name="s", applications=(Application(config=config),)), tiny=True)
    small = scaled.service.applications[0].config
    assert (small.tokenizer, small.vae, small.prediction, small.loras, small.safety_checker) == (
        None,
        None,
        None,
        {},
        None,
    )
    assert small.max_prompt_tokens == 150 and small.served_name == "mix"
    assert scaled.notes[0].endswith("mix.safetensors, without tokenizer, vae, prediction, loras, safety_checker")


def a_cell(bucket: Bucket | None = None, **config: object) -> Service:
    return Service(name="s", applications=(Application(config=CellConfig(**config)),), bucket=bucket)


@pytest.mark.parametrize(
    ("state_uri", "bucket", "kept"),
    [
        ("gs://b/cell", None, "~/.local/state/podslice/s-prod"),
        ("/gcs/cell", Bucket(read_only=False), "~/.local/state/podslice/s-prod"),
        ("/gcs/cell", None, "/gcs/cell"),
        ("/srv/cell", Bucket(), "/srv/cell"),
    ],
)
@pytest.mark.parametrize("tiny", [False, True])
def test_a_cells_state_stays_on_this_machine(state_uri, bucket, kept, tiny):
    scaled = scale_down(a_cell(bucket, name="prod", state_uri=state_uri), tiny=tiny)
    config = scaled.service.applications[0].config
    assert (config.state_uri, config.tiny) == (kept, tiny)
    told = [sentence for sentence in scaled.notes if f"kept in {kept} instead of {state_uri}" in sentence]
    assert len(told) == (kept != state_uri)


def test_a_tiny_cell_says_what_that_means():
    (sentence,) = scale_down(a_cell(slice="v5e:4x8"), tiny=True).notes
    assert sentence.startswith("cell: published models are served as tiny random ones")
    scaled = scale_down(a_cell(slice="v5e:4x8", tiny=True), tiny=True, hosts_per_slice=2)
    assert str(scaled.service.applications[0].config.slice) == "v5e:2x4:4t"
    assert scaled.notes == ("cell: slices of v5e:2x4:4t (2 hosts, 8 chips) instead of v5e:4x8 (8 hosts, 32 chips)",)


def test_the_whole_graph_fits_on_a_laptop():
    service = scale_down(load("ray_configs.catalog.whole_graph"), tiny=True).service
    llm, pictures, cell = (app.config for app in service.applications)
    assert llm.tiny and pictures.model == DEMO_MODEL and cell.tiny
    assert (cell.min_replicas, cell.max_replicas) == (1, 1)
    assert cell.state_uri == "~/.local/state/podslice/podslice-test"
    (manifest,) = (item for item in render(service) if item["kind"] == "RayService")
    plan = plan_of(manifest, address="127.0.0.2")
    assert [len(slice.hosts) for slice in plan.slices] == [1, 1, 8, 1, 1, 1]
    assert [slice.hosts[0].cpus >= 2 for slice in plan.slices] == [True, True, False, True, True, True], (
        "for Serve's processes"
    )
    assert HEAD_GB + HOST_GB * (len(plan.hosts) - 1) < 12, "of 24 GB"


def test_what_was_small_stays():
    config = scale_down(one(max_batch_size=2, max_step_tokens=8, max_model_len=64), tiny=True).service.applications[0]
    assert (config.config.max_batch_size, config.config.max_step_tokens, config.config.max_model_len) == (2, 8, 64)


@pytest.mark.parametrize(
    ("slice", "hosts", "smaller"),
    [
        ("v5e:4x8", 2, "v5e:2x4:4t"),
        ("v5e:4x8", 4, "v5e:4x4"),
        ("v5e:4x8", 1, "v5e:2x2"),
        ("v6e:16x16", 2, "v6e:2x4:4t"),
        ("v4:2x2x4", 2, "v4:2x2x2"),
        ("v5e:2x4:8t", 1, "v5e:2x4:8t"),
        ("v5e:2x4:4t", 8, "v5e:2x4:4t"),
    ],
)
def test_fewer_hosts(slice, hosts, smaller):
    scaled = scale_down(one(slice=slice), hosts_per_slice=hosts)
    (application,) = scaled.service.applications
    assert str(application.config.slice) == smaller
    assert bool(scaled.notes) == (slice != smaller)
    assert scaled.service.worker_groups[0].slice == application.config.slice  # what is rendered follows


def test_a_number_of_hosts_that_is_not_sold():
    with pytest.raises(LocalError, match=r"no v5e slice of 3 hosts with 4 chips each; --hosts-per-slice can be 1, 2, "):
        scale_down(one(slice="v5e:4x8"), hosts_per_slice=3)


def test_two_applications_that_would_meet_on_the_same_workers():
    apps = (
        Application(config=LLMConfig(slice="v5e:2x4:8t")),
        Application(config=LLMConfig(slice="v5e:4x8"), name="other", route_prefix="/other"),
    )
    with pytest.raises(LocalError, match=r"(?s)workers of different machine type.*--hosts-per-slice 2 may be why"):
        scale_down(Service(name="s", applications=apps), hosts_per_slice=2)
