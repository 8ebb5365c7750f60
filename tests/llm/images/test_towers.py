"""What a config.json says of a tower and of positions, in the forms that files have it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from apps.llm.api import RequestError
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.families.towers import tower_of
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.model.towers.siglip import SiglipTower
from apps.llm.engine.model.towers.spec import Gemma4Vision, QwenVision, SiglipVision
from apps.llm.engine.weights.checkpoint import Checkpoint, _canonical_name
from apps.llm.text import Engine, EngineConfig
from apps.llm.text.images.reader import SeenTokens
from tests.llm.engine import tiny_models
from tests.llm.engine.asking import ask, ids
from tests.llm.images import seeing_models
from tests.llm.images.conftest import SEES

HUB = {
    "model_type": "qwen2_5_vl", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 128000,
    "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False, "use_sliding_window": False,
    "sliding_window": 32768, "vocab_size": 152064, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "in_chans": 3, "num_heads": 16,
    "intermediate_size": 3420, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31], "temporal_patch_size": 2},
}  # fmt: skip
"""As Qwen2.5-VL 7B's: the decoder's fields beside the tower's."""


def test_fields_beside_the_tower_are_the_decoders() -> None:
    """The oracle is transformers' config class, which moves them below `text_config`."""
    nested = json.loads(transformers.Qwen2_5_VLConfig(**HUB).to_json_string())
    assert "text_config" in nested
    flat, moved = from_hf_config(HUB), from_hf_config(nested)
    assert flat.layers == moved.layers and flat.hidden_size == moved.hidden_size == 3584
    rope = flat.attention[0].rope
    assert rope is not None and rope.theta == 1e6 and (rope.sections, rope.in_turns) == ((16, 24, 24), False)
    assert tower_of(HUB, {}) == tower_of(nested, {})
    assert tower_of(HUB, {}).window == 8


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl", "qwen2_5_vl"])
def test_axes_are_those_of_transformers(family: str) -> None:
    """Which pairs turn with time, row and column: shown by its own rotary embedding, with one of them at a time."""
    import torch

    model = seeing_models.make(family).model.language_model
    ids = torch.zeros(3, 3, 1, dtype=torch.long)
    ids[0, 0], ids[1, 1], ids[2, 2] = 1, 1, 1  # the batch's first has time alone, and so on
    sines = model.rotary_emb(torch.zeros(3, 1, 1), ids)[1][:, 0]
    pairs = sines.shape[1] // 2
    found = sines[:, :pairs].abs().argmax(dim=0).tolist()
    arch = from_hf_config(seeing_models.make(family).config.to_dict())
    (attention,) = arch.attention
    assert attention.rope is not None and attention.rope.axes(attention.head_dim) == found


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
        ({"num_heads": 5}, "does not split into 5 heads"),
        ({"num_position_embeddings": 37}, "37 is no square"),
        ({"out_hidden_size": 63}, "out_hidden_size 63 is not the decoder's 64"),
        ({"patch_size": 0}, "patch_size must be a positive number"),
        (
            {"deepstack_visual_indexes": [0, 4]},
            r"indexes \[0, 4\] are not ascending numbers of 4 layers",
        ),
        ({"deepstack_visual_indexes": [2, 0]}, r"indexes \[2, 0\] are not ascending"),
    ],
)
def test_towers_that_are_not_supported(changes: dict[str, Any], said: str) -> None:
    config = seeing_models.make("qwen3_vl").config.to_dict()
    assert isinstance(tower_of(config, {}), QwenVision)
    with pytest.raises(UnsupportedModel, match=said):
        tower_of(config | {"vision_config": config["vision_config"] | changes}, {})


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"mm_tokens_per_image": 15}, "do not pool to a square of tokens"),
        ({"vision_config": seeing_models.SIGLIP | {"image_size": 30}}, "image_size 30 with patch_size 4 are not"),
        ({"vision_config": seeing_models.SIGLIP | {"hidden_act": "relu"}}, "hidden_act 'relu' is not supported"),
    ],
)
def test_gemmas_towers_that_are_not_supported(changes: dict[str, Any], said: str) -> None:
    config = seeing_models.make("gemma3").config.to_dict()
    assert isinstance(tower_of(config, {}), SiglipVision)
    with pytest.raises(UnsupportedModel, match=said):
        tower_of(config | changes, {})
    with pytest.raises(UnsupportedModel, match="do_pan_and_scan is not supported"):
        tower_of(config, {"do_pan_and_scan": True})


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"hidden_activation": "relu"}, "hidden_activation 'relu' is not supported: 'gelu_pytorch_tanh'"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not supported: 4"),
        ({"head_dim": 16}, "head_dim 16 is not supported: 12"),
        ({"attention_bias": True}, "attention_bias True is not supported: False"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type 'linear' is not supported: 'axial'"),
        ({"position_embedding_size": -1}, "position_embedding_size must be a positive number"),
    ],
)
def test_gemma_4s_towers_that_are_not_supported(changes: dict[str, Any], said: str) -> None:
    config = seeing_models.make("gemma4").config.to_dict()
    assert isinstance(tower_of(config, {}), Gemma4Vision)
    with pytest.raises(UnsupportedModel, match=said):
        tower_of(config | {"vision_config": config["vision_config"] | changes}, {})


def test_gemma_4_needs_room_for_its_smallest_images(seeing: Callable[[str], Path]) -> None:
    settings = tiny_models.SMALL | SEES | {"max_image_tokens": 69}
    with pytest.raises(ValueError, match="max_image_tokens is 69, but an image has 70 tokens in this model: raise it"):
        Engine.load(EngineConfig(model=str(seeing("gemma4")), **settings))


def test_a_larger_image_than_the_models_is_refused(load_seeing: Callable[..., Engine]) -> None:
    """As another process may send it; a step may have no room for it."""
    asked = SeenTokens(
        *seeing_models.prompt([seeing_models.scene(1, 40, 40)], [[5], [6]], "gemma4", max_soft_tokens=140)
    )
    with pytest.raises(RequestError, match="an image has 121 tokens; at most 70 are taken"):
        load_seeing("gemma4", max_image_tokens=140).submit(asked)


def test_an_image_has_room_in_one_step(seeing: Callable[[str], Path]) -> None:
    """Beside a token of each of seven others."""
    settings = tiny_models.SMALL | SEES | {"max_step_tokens": 22}
    with pytest.raises(ValueError, match=r"max_step_tokens is 22, .* raise it to 23 at least"):
        Engine.load(EngineConfig(model=str(seeing("gemma3")), **settings))


def test_names_of_the_hubs_files(seeing: Callable[[str], Path]) -> None:
    """Gemma 3's there have SigLIP's own prefix. Source: convert_gemma3_weights.py in transformers."""
    declared = SiglipTower(tower_of(seeing_models.make("gemma3").config.to_dict(), {}), 1).declare()
    (name,) = {source.tensor for source in declared["patch"].source}
    assert name in Checkpoint(str(seeing("gemma3"))).tensors
    assert _canonical_name(name.replace("model.vision_tower.", "vision_tower.vision_model.")) == name


@pytest.mark.parametrize("family", ["qwen3_5", "qwen2_5_vl", "mistral3", "gemma3", "gemma4"])
def test_what_a_processors_file_leaves_out_is_transformers_default(family: str) -> None:
    config = seeing_models.make(family).config.to_dict()
    processor = type(seeing_models.processor(family))()
    tower = tower_of(config, {})
    assert tower is not None
    assert (tower.pixels.mean, tower.pixels.std) == (tuple(processor.image_mean), tuple(processor.image_std))
    assert tower.pixels.factor == processor.rescale_factor
    own = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.1, 0.2, 0.3], "rescale_factor": 0.5, "do_normalize": True}
    given = tower_of(config, own)
    assert given is not None and given.pixels.mean == (0.5, 0.4, 0.3) and given.pixels.factor == 0.5


def test_experts_as_the_hubs_files_have_them(seeing: Callable[[str], Path], load: Any, tmp_path: Path) -> None:
    """Qwen3-VL's there are transposed, and transformers turns them when it reads them: it is the oracle."""
    shutil.copytree(seeing("qwen3_vl_moe"), tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    turned = {name: tensor.transpose(1, 2).contiguous() for name, tensor in tensors.items() if ".experts." in name}
    assert len(turned) == 2 * tiny_models.LAYERS
    save_file(tensors | turned, file, {"format": "pt"})
    model = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path)
    prompt = list(range(5, 25))
    expected = seeing_models.greedy(model, [], prompt, 10)
    assert expected == seeing_models.greedy(seeing_models.make("qwen3_vl_moe"), [], prompt, 10)
    assert ids(ask(load(model=str(tmp_path)), prompt, max_tokens=10, min_tokens=10, temperature=0.0)) == expected


def test_a_model_without_a_tower_is_refused(llama: Path, seeing: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="image_tokens: images are not supported for this model"):
        Engine.load(EngineConfig(model=str(llama), **tiny_models.SMALL | SEES))
