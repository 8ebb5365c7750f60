"""The shipped model is whole, draws what its card says, and can be made again."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

from PIL import Image  # noqa: E402
from safetensors import safe_open  # noqa: E402

from tools.demo_models.pictures.card import FIELDS  # noqa: E402
from tools.demo_models.pictures.denoiser import normalise, token_ids  # noqa: E402
from tools.demo_models.pictures.evaluate import GALLERY, cases, evaluate, pipeline_drawer  # noqa: E402
from tools.demo_models.pictures.model import ModelConfig, build_vae, load_pipeline  # noqa: E402
from tools.demo_models.pictures.optimizer import orthogonalised  # noqa: E402
from tools.demo_models.pictures.scenes import training_caption, training_scene  # noqa: E402
from tools.demo_models.pictures.tokenizer import make_tokenizer, words  # noqa: E402
from tools.demo_models.pictures.train import MODEL, train  # noqa: E402
from tools.demo_models.pictures.training import Clock, Threads, TrainConfig  # noqa: E402

pytestmark = pytest.mark.slow

TINY = ModelConfig(
    vae_channels=(8, 8, 8), unet_channels=(8, 16, 16), unet_heads=2, text_width=16, text_layers=1, text_heads=2
)


@pytest.fixture(scope="module")
def tokenizer():
    return load_pipeline(MODEL).tokenizer


@pytest.fixture(scope="module")
def recorded() -> dict:
    return json.loads((MODEL / "evaluation.json").read_text())


def test_the_folder_is_a_small_stable_diffusion_1_pipeline():
    files = {str(file.relative_to(MODEL)): file.stat().st_size for file in MODEL.rglob("*") if file.is_file()}
    assert set(files) == {
        "README.md", "evaluation.json", "model_index.json", "pictures.png", "scheduler/scheduler_config.json",
        "text_encoder/config.json", "text_encoder/model.safetensors",
        "tokenizer/merges.txt", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json", "tokenizer/vocab.json",
        "unet/config.json", "unet/diffusion_pytorch_model.safetensors",
        "vae/config.json", "vae/diffusion_pytorch_model.safetensors",
    }  # fmt: skip
    assert sum(files.values()) <= 20e6
    index = json.loads((MODEL / "model_index.json").read_text())
    assert index["_class_name"] == "StableDiffusionPipeline"
    assert index["safety_checker"] == [None, None]
    assert [index[part][1] for part in ("text_encoder", "tokenizer", "unet", "vae")] == [
        "CLIPTextModel", "CLIPTokenizer", "UNet2DConditionModel", "AutoencoderKL",
    ]  # fmt: skip
    for name in files:
        if name.endswith(".safetensors"):
            with safe_open(MODEL / name, "pt") as weights:
                every = {key: weights.get_tensor(key) for key in weights.keys()}  # noqa: SIM118  it is no dict
            assert all(one.dtype == torch.float16 and one.isfinite().all() for one in every.values())
            assert "text_encoder" not in name or all(key.startswith("text_model.") for key in every)


def test_a_user_gets_a_picture_with_three_lines():
    from diffusers import StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(MODEL)
    pipeline.set_progress_bar_config(disable=True)
    picture = pipeline("a red circle", num_inference_steps=1).images[0]
    assert picture.size == (64, 64)


def test_the_same_seed_gives_the_same_picture_and_another_one_another():
    first, second = pipeline_drawer(MODEL, steps=2), pipeline_drawer(MODEL, steps=2)
    one = first(["a red circle"])
    assert (one == second(["a red circle"])).all()
    assert (one != first(["a red circle"])).any()


def test_it_draws_held_out_combinations():
    asked = [case for case in cases(24) if case.group == "one thing, held out"]
    assert len(asked) == 24
    scores = evaluate(pipeline_drawer(MODEL, steps=15, seed=1), asked).summary()["one thing, held out"]
    assert scores["color"] >= 0.8 and scores["background"] >= 0.8 and scores["shape"] >= 0.65, scores


def test_the_recorded_evaluation_is_the_cards(recorded):
    groups = recorded["evaluation"]["groups"]
    card = (MODEL / "README.md").read_text()
    for group, scores in groups.items():
        marks = [f"{scores[field]:.1%}" if field in scores else "" for field in FIELDS]
        assert f"| {group} | {scores['cases']} | {' | '.join(marks)} |" in card
    assert groups["one thing, held out"]["color"] >= 0.9 and groups["one thing, held out"]["shape"] >= 0.8
    assert all(prompt in card for prompt in GALLERY) and "pictures.png" in card
    assert Image.open(MODEL / "pictures.png").size == (8 * 64, 3 * 64)


def test_the_tokenizer_lowers_case_and_has_a_token_for_each_word(tokenizer):
    ids = tokenizer("A small RED circle on a blue background").input_ids
    assert ids == tokenizer("a small red circle on a blue background").input_ids
    assert len(ids) == 8 + 2 and (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a small red circle on a blue background"
    assert all(len(tokenizer(word).input_ids) == 3 for word in words())
    assert set(make_tokenizer(tokenizer.model_max_length).get_vocab()) == set(tokenizer.get_vocab())


def test_the_tokenizer_takes_what_it_does_not_know_apart(tokenizer):
    for text in ("zebra", "größe 한국어 🙂", "x" * 500, "!?", ""):
        ids = token_ids(tokenizer, [text])
        assert ids.shape == (1, 32) and ids.max() < len(tokenizer)
        assert ids[0, 0] == tokenizer.bos_token_id and ids[0, -1] == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer("größe 한국어").input_ids, skip_special_tokens=True) == "größe 한국어"


def test_no_caption_is_longer_than_the_prompt(tokenizer):
    rng = random.Random(0)
    longest = max((training_caption(rng, training_scene(rng)) for _ in range(2000)), key=len)
    assert len(tokenizer(longest).input_ids) <= tokenizer.model_max_length


def test_a_run_that_was_stopped_goes_on(tmp_path):
    config = TrainConfig(
        work=tmp_path / "work", vae_steps=2, vae_batch=2, pictures=8, steps=2, batch=2, checkpoint_minutes=0
    )
    first = train(config, TINY, tmp_path / "model")
    assert (first["vae_steps"], first["steps"]) == (2, 2)
    weights = _weights(tmp_path / "model")
    again = train(config, TINY, tmp_path / "again")
    assert again["steps"] == 2
    assert all(torch.equal(one, _weights(tmp_path / "again")[name]) for name, one in weights.items())
    more = train(replace(config, steps=4), TINY, tmp_path / "model")
    assert (more["vae_steps"], more["steps"]) == (2, 4)
    assert any(not torch.equal(one, _weights(tmp_path / "model")[name]) for name, one in weights.items())
    pictures = pipeline_drawer(tmp_path / "model", steps=1)(["a red circle", "blue star"])
    assert pictures.shape == (2, 64, 64, 3)


def _weights(folder: Path) -> dict:
    with safe_open(folder / "unet" / "diffusion_pytorch_model.safetensors", "pt") as weights:
        return {key: weights.get_tensor(key) for key in weights.keys()}  # noqa: SIM118  it is no dict


def test_normalised_latents_draw_the_same():
    torch.manual_seed(0)
    vae, pictures = build_vae(TINY).eval(), torch.rand(4, 3, 64, 64)
    with torch.no_grad():
        before = vae.encode(pictures).latent_dist
        drawn = vae.decode(before.mean).sample
        mean, std = before.mean.mean((0, 2, 3)), before.mean.std((0, 2, 3))
        normalise(vae, mean, std)
        after = vae.encode(pictures).latent_dist
        assert torch.allclose(vae.decode(after.mean).sample, drawn, atol=1e-4)
    assert torch.allclose(after.mean.mean((0, 2, 3)), torch.zeros(4), atol=1e-4)
    assert torch.allclose(after.mean.std((0, 2, 3)), torch.ones(4), atol=1e-4)
    assert torch.allclose(after.std * std.view(1, -1, 1, 1), before.std, rtol=1e-3)


@pytest.mark.parametrize("shape", [(16, 40), (96, 64)])
def test_muon_makes_a_matrix_orthogonal(shape):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
    assert values.min() > 0.5 and values.max() < 1.4


def test_a_clock_goes_by_what_ends_first():
    assert Clock(steps=10, minutes=60, checkpoint_minutes=1).done(5) == pytest.approx(0.5, abs=0.01)
    assert Clock(steps=10, minutes=1e-9, checkpoint_minutes=1).done(0) >= 1


def test_threads_are_left_at_one_of_the_choices():
    before = torch.get_num_threads()
    threads = Threads()
    try:
        for _ in range(120):
            threads.tick()
            assert torch.get_num_threads() in threads.choices
    finally:
        torch.set_num_threads(before)
    assert np.isfinite(sum(map(sum, threads.seconds)))
