"""Checkpoints of Z-Image that cannot be served: by file, field and reason."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from apps.arrays.model_folder import CheckpointError
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.model.config_ranges import FIELDS
from tests.stable_diffusion.engine.flow.conftest import SIZES
from tests.stable_diffusion.engine.test_picture_not_finite import BAD


@pytest.fixture
def model(z_image: Path, tmp_path: Path) -> Path:
    return shutil.copytree(z_image, tmp_path / "model")


def opened(folder: Path) -> JaxBackend:
    return JaxBackend(folder, sizes=SIZES, dtype="float32")


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("field", FIELDS["transformer"])
def test_a_config_out_of_range_is_refused(model: Path, field: str) -> None:
    for bad in BAD:
        change(model / "transformer/config.json", **{field: bad})
        with pytest.raises(CheckpointError, match=rf"transformer/config.json: {field}\b.* not "):
            opened(model)


@pytest.mark.parametrize(
    ("file", "changes", "complaint"),
    [
        ("transformer/config.json", {"siglip_feat_dim": 1152}, "siglip_feat_dim 1152 is not supported"),
        ("transformer/config.json", {"all_patch_size": [2, 4]}, r"all_patch_size \[2, 4\] is not supported"),
        ("transformer/config.json", {"n_kv_heads": 1}, "n_kv_heads 1 is not supported, only 3"),
        ("transformer/config.json", {"axes_dims": [4, 6, 4]}, "dim is 48, but n_heads times the sum of axes_dims 42"),
        ("transformer/config.json", {"cap_feat_dim": 64}, "cap_feat_dim is 64, but .* hidden_size is 32"),
        ("transformer/config.json", {"in_channels": 16}, "latent_channels is 4, but the transformer takes 16"),
        ("transformer/config.json", {"n_layers": 3}, "tensor layers.2.*is missing"),
        ("vae/config.json", {"latent_channels": 16}, "latent_channels is 16, but the transformer takes 4"),
        ("text_encoder/config.json", {"model_type": "t5"}, "text_encoder/config.json: .*t5"),
        ("text_encoder/config.json", {"num_key_value_heads": 3}, "text_encoder/config.json: "),
        ("scheduler/scheduler_config.json", {"use_karras_sigmas": True}, "use_karras_sigmas True is not supported"),
        ("model_index.json", {"_class_name": "ZImageOmniPipeline"}, "ZImageOmniPipeline"),
        (
            "model_index.json",
            {"text_encoder": ["transformers", "T5EncoderModel"]},
            "only Qwen3Model or Qwen3ForCausalLM",
        ),
    ],
)
def test_what_is_not_served_is_refused(model: Path, file: str, changes: dict[str, Any], complaint: str) -> None:
    change(model / file, **changes)
    with pytest.raises(CheckpointError, match=complaint):
        opened(model)


@pytest.mark.parametrize("component", ["transformer", "text_encoder", "vae"])
def test_numbers_that_are_not_finite_are_refused(model: Path, component: str) -> None:
    (file,) = (model / component).glob("*.safetensors")
    tensors = {name: tensor.copy() for name, tensor in load_file(file).items()}
    name = sorted(name for name in tensors if "to_q" in name or "q_proj" in name or "conv_in" in name)[0]
    tensors[name].reshape(-1)[-1] = np.nan
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="not finite"):
        opened(model)


def test_a_tokenizer_without_its_template_is_refused(model: Path) -> None:
    (model / "tokenizer/chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="the tokenizer's chat template fails"):
        opened(model)
    (model / "tokenizer/chat_template.jinja").write_text("{{ 'always the same' }}")
    with pytest.raises(CheckpointError, match="leaves the message out"):
        opened(model)
