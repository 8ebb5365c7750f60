"""Checkpoints wherever they lie, and whatever is wrong with them: each error names the file, field or tensor."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.backends.torch_backend import TorchBackend
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint, CheckpointError
from tests.hub import hub
from tests.stable_diffusion.engine import tiny_pictures

UNET = "unet/diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(checkpoint("sd1"), tmp_path / "model")


def load(place: Any) -> JaxBackend:
    return JaxBackend(str(place), sizes=[(32, 32)], dtype="float32")


def change(file: Path, **fields: Any) -> None:
    """A value of None takes the field out."""
    changed = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({name: value for name, value in changed.items() if value is not None}))


def rewrite(file: Path, edit: Callable[[dict[str, np.ndarray]], Any]) -> None:
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no index": (lambda f: (f / "model_index.json").unlink(), "model_index.json is missing; a folder in diffusers"),
    "a single file": (
        lambda f: ((f / "model_index.json").unlink(), (f / "v1-5.safetensors").write_bytes(b"")),
        "v1-5.safetensors is a checkpoint in a single file: name it",
    ),
    "broken index": (lambda f: (f / "model_index.json").write_text("{"), "model_index.json is not valid JSON"),
    "SD3": (
        lambda f: change(f / "model_index.json", _class_name="StableDiffusion3Pipeline"),
        "'StableDiffusion3Pipeline'; supported are Stable Diffusion 1.x, 2.x and XL",
    ),
    "Flux": (lambda f: change(f / "model_index.json", _class_name="FluxPipeline"), "the pipeline 'FluxPipeline'"),
    "no VAE": (lambda f: change(f / "model_index.json", vae=None), "the component vae is missing"),
    "another VAE": (
        lambda f: change(f / "model_index.json", vae=["diffusers", "AutoencoderTiny"]),
        "vae is a AutoencoderTiny; only AutoencoderKL is supported",
    ),
    "no UNet folder": (lambda f: shutil.rmtree(f / "unet"), "unet/config.json is missing"),
    "no weights": (lambda f: (f / UNET).unlink(), f"{UNET} is missing; only safetensors"),
    "pickles": (
        lambda f: (f / UNET).rename(f / "unet/diffusion_pytorch_model.bin"),
        "unet/diffusion_pytorch_model.bin is a pickle, which is not read: convert .*safe_serialization",
    ),
    "cut short": (lambda f: (f / UNET).write_bytes((f / UNET).read_bytes()[:30000]), f"{UNET} is cut short"),
    "empty": (lambda f: (f / UNET).write_bytes(b""), rf"{UNET} .*\(0 bytes\)"),
    "damaged header": (
        lambda f: (f / UNET).write_bytes((9).to_bytes(8, "little") + b'{"a": [}}' + b"x" * 99),
        f"{UNET}: damaged safetensors header",
    ),
    "missing tensor": (
        lambda f: rewrite(f / UNET, lambda t: t.pop("mid_block.resnets.1.conv1.weight")),
        r"/unet: tensor mid_block.resnets.1.conv1.weight is missing",
    ),
    "another shape": (
        lambda f: rewrite(f / UNET, lambda t: t.update({"conv_in.weight": np.zeros((16, 4, 1, 1), np.float32)})),
        r"tensor conv_in.weight has shape \[16, 4, 1, 1\], but the config implies \[16, 4, 3, 3\]",
    ),
    "other sizes": (
        lambda f: change(f / "text_encoder/config.json", intermediate_size=40),
        r"/text_encoder: tensor encoder.layers.0.mlp.fc1.weight has shape \[48, 32\].* \[40, 32\]",
    ),
    "nine channels": (lambda f: change(f / "unet/config.json", in_channels=9), "in_channels 9 is not supported"),
    "another block": (
        lambda f: change(f / "unet/config.json", down_block_types=["KDownBlock2D", "DownBlock2D"]),
        "down_block_types 'KDownBlock2D' is not supported, only .*'CrossAttnDownBlock2D'",
    ),
    "class embeddings": (
        lambda f: change(f / "unet/config.json", class_embed_type="timestep"),
        "class_embed_type 'timestep' is not supported",
    ),
    "latents' means": (
        lambda f: change(f / "vae/config.json", latents_mean=[0.0] * 4),
        "latents_mean .* not supported",
    ),
    "activation": (
        lambda f: change(f / "text_encoder/config.json", hidden_act="relu"),
        "text_encoder/config.json: hidden_act 'relu' is not supported",
    ),
    "no channels": (
        lambda f: change(f / "unet/config.json", block_out_channels=None),
        "the field block_out_channels is missing",
    ),
    "thresholding": (
        lambda f: change(f / "scheduler/scheduler_config.json", thresholding=True),
        "scheduler_config.json: thresholding True is not supported: set it to False",
    ),
    "no tokenizer": (lambda f: shutil.rmtree(f / "tokenizer"), "/tokenizer: no tokenizer can be read"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(folder: Path, kind: str) -> None:
    damage, message = DAMAGE[kind]
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


@pytest.mark.parametrize("kind", ["SD3", "no VAE", "pickles", "nine channels", "thresholding"])
def test_torch_refuses_the_same(folder: Path, kind: str) -> None:
    damage, message = DAMAGE[kind]
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        TorchBackend(str(folder), sizes=[(32, 32)], device="cpu")


def test_no_such_place(tmp_path: Path) -> None:
    for place in (str(tmp_path / "absent"), "~/no/such/folder", "memory://absent", "a/b/c"):
        with pytest.raises(CheckpointError, match="no such folder"):
            Checkpoint(place)
    (tmp_path / "model.ckpt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"is a file; a folder in diffusers' layout or a \.safetensors file"):
        Checkpoint(str(tmp_path / "model.ckpt"))


def test_sizes_that_the_model_cannot_make(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="size 33x32: this model needs multiples of 2"):
        JaxBackend(str(checkpoint("sd1")), sizes=[(33, 32)])


def weights(backend: JaxBackend) -> dict[str, np.ndarray]:
    return {f"{part}/{name}": np.asarray(a) for part, arrays in backend._weights.items() for name, a in arrays.items()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_remote_is_as_local(checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("sdxl")
    fsspec.filesystem("memory").put(str(folder), "/models/xl", recursive=True)
    same(weights(load("memory://models/xl")), weights(load(folder)))
    with Checkpoint("memory://models/xl").local_folder() as copy:
        files = {str(path.relative_to(copy)) for path in Path(copy).rglob("*") if path.is_file()}
    assert not Path(copy).exists()
    assert {UNET, "tokenizer_2/vocab.json", "scheduler/scheduler_config.json", "text_encoder_2/config.json"} <= files


def test_shards_and_variants(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    reference = weights(load(checkpoint("sd1")))
    sharded = tiny_pictures.save("sd1", tmp_path / "sharded", max_shard_size="100KB")
    assert len(list((sharded / "unet").glob("*.safetensors"))) > 1
    same(weights(load(sharded)), reference)
    half = tiny_pictures.save("sd1", tmp_path / "half", dtype="float16", variant="fp16")
    assert Checkpoint(str(half)).variant == "fp16"
    for name, array in weights(load(half)).items():
        np.testing.assert_allclose(array, reference[name], rtol=1e-3, atol=1e-4)
    assert TorchBackend(str(half), sizes=[(32, 32)], device="cpu", dtype="float32").name == "torch"
    shutil.copytree(half, tmp_path / "both")
    shutil.copytree(checkpoint("sd1"), tmp_path / "both", dirs_exist_ok=True)
    assert Checkpoint(str(tmp_path / "both")).variant is None


HUB_SCRIPT = """
from pathlib import Path
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint, CheckpointError
checkpoint = Checkpoint("someone/tiny")
print(sorted(p.name for p in Path(checkpoint.location).rglob("*.safetensors")))
print(sorted(p.name for p in Path(checkpoint.location).rglob("*.bin")))
print(len(checkpoint.tensors("unet")) > 10)
try:
    Checkpoint("someone/else")
except CheckpointError as error:
    print(error)
"""


def test_hub_id(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Only what is needed is fetched: the fp16 variant of the one component that has nothing else, and no pickles."""
    folder = shutil.copytree(checkpoint("sd1"), tmp_path / "model")
    for component in ("unet", "vae"):
        name = folder / component / "diffusion_pytorch_model.safetensors"
        shutil.copy(name, name.with_suffix(".fp16.safetensors"))
        shutil.copy(name, name.with_suffix(".bin"))
        shutil.copy(name, name.with_suffix(".fp16.bin"))
    (folder / UNET).unlink()
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-c", HUB_SCRIPT]
    with hub(folder, tmp_path / "home") as environment:
        found = subprocess.run(
            command,
            env=os.environ | environment | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert found.returncode == 0, found.stderr[-3000:]
    fetched, pickles, many, error = found.stdout.splitlines()[:4]
    plain, half = "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.fp16.safetensors"
    assert fetched == str([half, plain, "model.safetensors"])
    assert (pickles, many) == ("[]", "True")
    assert "someone/else: neither a local folder nor a model" in error
