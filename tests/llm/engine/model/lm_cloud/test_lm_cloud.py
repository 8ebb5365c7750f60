"""Saxml's LmCloud models: logits against a plain reference, sizes and shards by arithmetic, names, and text."""

import json
import math
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from apps.llm.engine.model import params
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.weights.model import Model
from apps.llm.text import Engine, EngineConfig, SamplingParams
from ray_configs.catalog import spmd_175b
from tests.llm.engine import tiny_models
from tests.llm.engine.model.lm_cloud import reference
from tests.llm.engine.model.test_models import IDS, Stepper, worst_error

LARGE = "lm_cloud.LmCloudSpmd175B32Test"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A random checkpoint and the reference's logits."""
    folder = tmp_path_factory.mktemp("lm_cloud")
    return folder, reference.logits(reference.save(folder), IDS)


@pytest.mark.parametrize("attention", ["xla", "cpu", pytest.param("pallas", marks=pytest.mark.slow)])
def test_logits(attention: str, checkpoint: tuple[Path, np.ndarray], compile_cache: str, interpreted: None) -> None:
    folder, expected = checkpoint
    assert 20 < np.abs(expected).max() < 30
    stepper = Stepper(folder, compile_cache, reference.ARCH, attention=attention)
    assert worst_error(stepper, expected) <= 1e-5  # GELU's two forms differ by ten times that


@pytest.mark.slow
def test_logits_on_four_devices(checkpoint: tuple[Path, np.ndarray], compile_cache: str) -> None:
    script = Path(__file__).with_name("on_devices.py")
    done = subprocess.run(
        [sys.executable, str(script), str(checkpoint[0]), compile_cache],
        env=tiny_models.environment(XLA_FLAGS=tiny_models.xla_flags(4)),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for found in json.loads(done.stdout.splitlines()[-1]).values():
        assert found["error"] <= 1e-5
        assert found["shards"] == {"qkv": [3 * 16, 64], "out": [64, 16], "up": [64, 64], "down": [64, 64]}


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({"dtype": "bfloat16"}, 0.05),
        ({"quantize_weights": "int8"}, 0.05),
        ({"quantize_kv_cache": "int8"}, 0.05),
        ({"quantize_weights": "int8", "quantize_kv_cache": "int8"}, 0.05),
    ],
    ids=str,
)
def test_logits_stay_close(
    settings: dict[str, str], bound: float, checkpoint: tuple[Path, np.ndarray], compile_cache: str
) -> None:
    folder, expected = checkpoint
    stepper = Stepper(folder, compile_cache, reference.ARCH, **settings)
    got = stepper(IDS[:90])
    expected = expected[:90]
    error = np.sqrt(np.mean((got - expected) ** 2)) / np.sqrt(np.mean(expected**2))
    assert 1e-4 < error < bound


def test_sizes() -> None:
    large, small = lm_cloud.find(LARGE), lm_cloud.find("lm_cloud.LmCloudSpmd2B")
    assert large.num_params == 96 * (4 * 12288**2 + 2 * 12288 * 49152) + 32000 * 12288
    assert round(large.num_params / 1e9, 1) == 174.3
    assert round(small.num_params / 1e9, 2) == 2.14
    layer = large.layers[0]
    assert (large.num_layers, layer.mixer.num_heads, layer.mixer.head_dim, layer.mlp.width) == (96, 96, 128, 49152)


@pytest.mark.parametrize(("int8", "gigabytes"), [(True, 5.5), (False, 10.93)])
def test_each_of_32_chips_holds_its_32nd(int8: bool, gigabytes: float) -> None:
    arch, mesh = lm_cloud.find(LARGE), AbstractMesh((32,), ("tensor",))
    tree = params.abstract(declare(arch, arch.split(32)), mesh, jnp.bfloat16, int8)
    first = tree["layers"][0]
    shards = {
        name: jax.tree.leaves(first[name])[0].sharding.shard_shape(jax.tree.leaves(first[name])[0].shape)
        for name in ("qkv", "out", "up", "down")
    }
    assert shards == {"qkv": (9 * 128, 12288), "out": (12288, 3 * 128), "up": (1536, 12288), "down": (12288, 1536)}
    leaves = jax.tree.leaves(tree)
    held = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
    assert held / 1e9 == pytest.approx(gigabytes, abs=0.02)


@pytest.mark.parametrize("name", [LARGE, f"saxml.server.pax.lm.params.{LARGE}"])
def test_names(name: str) -> None:
    model = Model.open(EngineConfig(model=name, random_weights=True))
    assert model.arch == lm_cloud.find(LARGE)
    assert model.checkpoint is None and model.random_weights
    assert model.max_len(EngineConfig(model=name)) == 2048


def test_other_names_are_no_registered_models() -> None:
    assert lm_cloud.find("meta-llama/Llama-3.2-1B") is None
    assert lm_cloud.find("/models/lm_cloud.LmCloudSpmd2B") is None
    with pytest.raises(UnsupportedModel, match=r"LmCloudSpmd1B.* is not registered; .*lm_cloud\.LmCloudSpmd175B32Test"):
        lm_cloud.find("lm_cloud.LmCloudSpmd1B")


def test_there_are_no_weights_to_load() -> None:
    with pytest.raises(ValueError, match=r"LmCloudSpmd2BTest has sizes but no weights: set random_weights to true"):
        Engine.load("lm_cloud.LmCloudSpmd2BTest")


def test_longer_than_the_model_means() -> None:
    config = EngineConfig(model=LARGE, random_weights=True, max_model_len=4096)
    with pytest.raises(ValueError, match="max_model_len is 4096, but this model's context is 2048"):
        Model.open(config).max_len(config)


def test_the_catalog_names_one() -> None:
    (application,) = spmd_175b.service.applications
    assert Model.open(application.config).arch.num_layers == 96


@pytest.mark.slow
def test_text(compile_cache: str) -> None:
    small = tiny_models.SMALL | {"compile_cache": compile_cache, "quantize_weights": "int8", "tiny": True}
    engine = Engine.load("lm_cloud.LmCloudSpmd2BTest", **small)
    params = SamplingParams(max_tokens=12, temperature=1.0, top_k=200, top_p=0.95, seed=3)
    first, again = (engine.generate(["Hello, 😀", "Q:"], params) for _ in range(2))
    other = engine.generate(["Hello, 😀"], SamplingParams(max_tokens=12, temperature=1.0, seed=4))
    assert first == again
    assert first[0] != first[1] and first[0] != other[0]
    assert all(text.strip() for text in first)
    engine.shutdown()
