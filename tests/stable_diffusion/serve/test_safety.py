"""The safety checker, against diffusers' `StableDiffusionPipeline.run_safety_checker`."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import httpx
import numpy as np
import pytest
import torch
import transformers
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker

from apps.arrays.model_folder import CheckpointError
from apps.stable_diffusion.engine.engine import Engine
from apps.stable_diffusion.http.app import http_app
from apps.stable_diffusion.pictures import PictureModel
from apps.stable_diffusion.safety import HIDDEN, SafetyChecker
from ray_configs.stable_diffusion import StableDiffusionConfig
from tests.http_servers import served
from tests.stable_diffusion.engine.loop_backend import LoopBackend
from tests.stable_diffusion.serve.picture_serving import events_of, noise, opened

VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION |= {"image_size": 32, "patch_size": 8}


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random checker whose thresholds some pictures pass."""
    folder = tmp_path_factory.mktemp("pipeline")
    torch.manual_seed(3)
    network = StableDiffusionSafetyChecker(transformers.CLIPConfig(vision_config=VISION, projection_dim=16))
    for name, tensor in network.named_parameters():
        torch.nn.init.constant_(tensor, 2.0) if name.endswith("weights") else torch.nn.init.normal_(tensor, std=0.3)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    processor = transformers.CLIPImageProcessor(**size)
    processor.save_pretrained(folder / "feature_extractor")
    with torch.no_grad():
        seen = processor(pictures()[9:], return_tensors="pt").pixel_values
        embedded = network.visual_projection(network.vision_model(seen)[1])
        alike = torch.nn.functional.cosine_similarity(embedded, network.concept_embeds[:1])
        network.concept_embeds_weights[0] = alike.median()
    network.save_pretrained(folder / "safety_checker")
    return folder


def by_diffusers(folder: Path, pixels: np.ndarray) -> bool:
    pipe = diffusers.StableDiffusionPipeline(
        None, None, None, None, diffusers.DDIMScheduler(),
        StableDiffusionSafetyChecker.from_pretrained(folder / "safety_checker"),
        transformers.CLIPImageProcessor.from_pretrained(folder / "feature_extractor"),
        requires_safety_checker=False,
    )  # fmt: skip
    _, found = pipe.run_safety_checker(pixels[None].astype(np.float32) / 255, "cpu", torch.float32)
    return found[0]


def pictures() -> list[np.ndarray]:
    plain = [np.full((48, 64, 3), color, np.uint8) for color in ((255, 0, 0), (0, 0, 255), (9, 9, 9))]
    return [*plain, *(noise(64, 48, seed) for seed in range(6)), *(noise(16, 16, seed) for seed in range(6))]


def test_as_diffusers(checker: Path) -> None:
    own = SafetyChecker(str(checker))
    found = [own.hidden(each) for each in pictures()]
    assert found == [by_diffusers(checker, each) for each in pictures()]
    assert True in found and False in found


@pytest.fixture(scope="module")
def studio(checker: Path) -> Iterator[tuple[str, PictureModel]]:
    config = StableDiffusionConfig(model="tiny", num_inference_steps=4, max_images_per_request=8)
    engine = Engine(LoopBackend())
    model = PictureModel(config, engine, SafetyChecker(str(checker)))
    with served(http_app(model)) as url:
        yield url, model
    engine.shutdown()


def test_what_it_hides_is_black_and_said(studio: Any, checker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, model = studio
    drawn = iter([picture for picture in pictures() if picture.shape == (16, 16, 3)] * 9)
    monkeypatch.setattr(
        model.engine.backend, "decode", lambda pictures, estimate=False: [next(drawn) for _ in pictures]
    )
    images = httpx.post(f"{url}/v1/images/generations", json={"prompt": "x", "n": 6}, timeout=60).json()["data"]
    expected = [by_diffusers(checker, each) for each in pictures()[9:]]
    assert [HIDDEN in image.get("warnings", []) for image in images] == expected and True in expected
    for image, hidden, pixels in zip(images, expected, pictures()[9:]):
        assert np.array_equal(np.asarray(opened(image["b64_json"])), np.zeros_like(pixels) if hidden else pixels)
    info = httpx.post(f"{url}/sdapi/v1/txt2img", json={"prompt": "x", "batch_size": 6}, timeout=60).json()["info"]
    assert json.loads(info)["warnings"] == [HIDDEN]


def test_previews_too(studio: Any, checker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, model = studio
    hidden = next(each for each in pictures()[9:] if by_diffusers(checker, each))
    monkeypatch.setattr(model.engine.backend, "decode", lambda pictures, estimate=False: [hidden for _ in pictures])
    with httpx.stream("GET", f"{url}/imagine", params={"prompt": "x", "stream": "true", "previews": 2}) as reply:
        shown = [data for name, data in events_of(reply.read().decode()) if name in ("preview", "picture")]
    assert len(shown) > 1 and all(not np.asarray(opened(each["b64_json"])).any() for each in shown)
    assert base64.b64decode(shown[0]["b64_json"])


def test_where_there_is_none(checker: Path, tmp_path: Path) -> None:
    assert not SafetyChecker(str(checker)).hidden(pictures()[0]) or by_diffusers(checker, pictures()[0])
    (tmp_path / "empty").mkdir()
    for location, says in ((str(tmp_path / "none"), "no such folder"), (str(tmp_path / "empty"), "cannot be read"),
                           ("gs://bucket/x", "a local folder or a hub id is expected")):  # fmt: skip
        with pytest.raises(CheckpointError, match=says):
            SafetyChecker(location)
