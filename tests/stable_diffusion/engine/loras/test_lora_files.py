"""LoRA files: what each layout means, and what is refused.

Layouts: kohya's networks/lora.py, diffusers' `save_lora_weights` of today and before PEFT. What the numbers mean is
checked against diffusers in `test_lora_pictures`; here, that the layouts of the same numbers are the same.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from apps.arrays.model_folder import CheckpointError
from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.ldm.unet_names import UNetNames
from apps.stable_diffusion.engine.loras.file import LoraFile
from apps.stable_diffusion.engine.loras.known import KnownLoras
from apps.stable_diffusion.engine.loras.layers import layers_of
from apps.stable_diffusion.engine.loras.names import LoraNames
from apps.stable_diffusion.engine.model import weights
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint
from apps.stable_diffusion.engine.model.unet import UNetArchitecture
from apps.stable_diffusion.engine.request import LoraUse
from tests.stable_diffusion.engine.loras import tiny_loras

QUERY = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"


def names_of(folder: Path) -> LoraNames:
    checkpoint = Checkpoint(folder)

    def shapes(component: str) -> dict[str, Any]:
        named = {weights._new_name(name): entry for name, entry in checkpoint.tensors(component).items()}
        return {name: SimpleNamespace(shape=weights._as_used(name, entry.shape)) for name, entry in named.items()}

    layers = {name: layers_of(shapes(name)) for name in (*checkpoint.text_encoders, "unet")}
    return LoraNames(layers, "unet", UNetNames(UNetArchitecture.of(checkpoint.config("unet"))))


@pytest.fixture(scope="module", params=["sd1", "sdxl"])
def model(request: Any, checkpoint: Callable) -> tuple[Path, LoraNames, bool]:
    folder = checkpoint(request.param)
    return folder, names_of(folder), request.param == "sdxl"


@pytest.fixture(scope="module")
def plain(checkpoint: Callable) -> tuple[Path, LoraNames]:
    return checkpoint("sd1"), names_of(checkpoint("sd1"))


def every_pair(file: LoraFile) -> dict[str, np.ndarray]:
    """What a LoRA adds to each layer's weight."""
    return {
        f"{component}.{layer}": np.einsum("...ri,ro->...io", *file.pair(component, layer, 1.0))
        for component, layer in file.layers
    }


def same(one: LoraFile, other: LoraFile) -> bool:
    a, b = every_pair(one), every_pair(other)
    assert a.keys() == b.keys()
    return all(np.allclose(a[name], b[name], atol=1e-5) for name in a)


def test_layouts_of_the_same_numbers_are_the_same(model: tuple, tmp_path: Path) -> None:
    folder, names, is_xl = model
    drawn = tiny_loras.draw(folder, 5, 3, 2.0)
    kohya = tiny_loras.write(tmp_path / "kohya.safetensors", tiny_loras.kohya(drawn, is_xl))
    peft = tiny_loras.write(tmp_path / "peft.safetensors", tiny_loras.peft(drawn))
    opened = LoraFile.open(str(kohya), names)
    assert len(opened.layers) == len(drawn) > 50, "every matrix and convolution of the model"
    for (component, layer), (down, up, alpha) in drawn.items():
        added = torch.einsum("or,r...->o...", up.flatten(1), down) * alpha / len(down)
        name = f"{component}.{layer.removeprefix('text_model.')}"
        stored = every_pair(opened)[name] if layer in ("conv_in", "text_model.encoder.layers.0.mlp.fc1") else None
        if stored is not None:
            expected = added.permute(2, 3, 1, 0) if added.ndim == 4 else added.T
            np.testing.assert_allclose(stored, expected.numpy(), atol=1e-5)
    assert same(opened, LoraFile.open(str(peft), names))


def test_older_layouts(plain: tuple, tmp_path: Path) -> None:
    folder, names = plain
    drawn = tiny_loras.draw(folder, 6, 2, 2.0, lambda component, layer: component == "unet" and "attn" in layer)
    new = LoraFile.open(str(tiny_loras.write(tmp_path / "new.safetensors", tiny_loras.peft(drawn))), names)
    older = tiny_loras.older(drawn)
    bare = {name.removeprefix("unet."): each for name, each in older.items()}
    for tensors in (older, bare):
        assert same(new, LoraFile.open(str(tiny_loras.write(tmp_path / "old.safetensors", tensors)), names))
    text = tiny_loras.draw(folder, 6, 2, 2.0, lambda component, layer: layer.endswith(("q_proj", "out_proj")))
    current = tiny_loras.write(tmp_path / "text.safetensors", tiny_loras.peft(text))
    before = {}
    for name, each in tiny_loras.peft(text).items():
        name = name.replace("q_proj.lora_A", "to_q_lora.down").replace("q_proj.lora_B", "to_q_lora.up")
        name = name.replace("out_proj.lora_A", "to_out_lora.down").replace("out_proj.lora_B", "to_out_lora.up")
        before[name] = each
    older_text = tiny_loras.write(tmp_path / "older.safetensors", before)
    assert same(LoraFile.open(str(current), names), LoraFile.open(str(older_text), names))


def test_alpha_in_the_metadata_and_of_whole_numbers(plain: tuple, tmp_path: Path) -> None:
    folder, names = plain
    drawn = tiny_loras.draw(folder, 7, 4, 2.0, tiny_loras.attention)
    unscaled = {}
    for (component, layer), (down, up, _) in drawn.items():
        unscaled |= {f"{component}.{layer}.lora_A.weight": down, f"{component}.{layer}.lora_B.weight": up}
    written = {f"{component}.lora_alpha": 2 for component in ("unet", "text_encoder")} | {"unet.r": 4}
    path = tiny_loras.write(tmp_path / "meta.safetensors", unscaled, lora_adapter_metadata=written)
    kohya = tiny_loras.kohya(drawn)
    whole = {name: each.long() if name.endswith("alpha") else each for name, each in kohya.items()}
    expected = LoraFile.open(str(tiny_loras.write(tmp_path / "k.safetensors", kohya)), names)
    assert same(expected, LoraFile.open(str(path), names))
    assert same(expected, LoraFile.open(str(tiny_loras.write(tmp_path / "w.safetensors", whole)), names))
    pattern = written | {"unet.alpha_pattern": {"attn1.to_q": 8}}
    path = tiny_loras.write(tmp_path / "pattern.safetensors", unscaled, lora_adapter_metadata=pattern)
    changed, before = every_pair(LoraFile.open(str(path), names)), every_pair(expected)
    for name in before:
        factor = 4 if name.startswith("unet") and name.endswith("attn1.to_q") else 1
        np.testing.assert_allclose(changed[name], factor * before[name], atol=1e-5)


def one(**more: Any) -> dict[str, torch.Tensor]:
    """The smallest LoRA: one layer of the tiny sd1."""
    tensors = {f"{QUERY}.lora_down.weight": torch.ones(2, 16), f"{QUERY}.lora_up.weight": torch.ones(16, 2)}
    return tensors | more


@pytest.mark.parametrize(
    "tensors, message",
    [
        (one(**{f"{QUERY}.dora_scale": torch.ones(16)}), rf"bad.safetensors: the key {QUERY}.dora_scale is of DoRA"),
        ({f"{QUERY}.hada_w1_a": torch.ones(2, 16)}, "hada_w1_a is of LoHa"),
        ({f"{QUERY}.lokr_w1": torch.ones(2, 16)}, "lokr_w1 is of LoKr"),
        (one(**{f"{QUERY}.diff": torch.ones(16, 16)}), "of a difference of whole weights"),
        (one(**{f"{QUERY}.lora_mid.weight": torch.ones(2, 2)}), "of a LoCon in Tucker's form"),
        (one(**{"lora_unet_nowhere.lora_down.weight": torch.ones(2, 16)}), "lora_unet_nowhere.* names no layer"),
        (one(**{"lora_te2_text_projection.lora_down.weight": torch.ones(2, 16)}), "names no layer of this model"),
        (one(**{f"{QUERY}.lora_down.weight": torch.ones(2, 9)}), r"down matrix has shape \[2, 9\].* \[2, 16\]"),
        (one(**{f"{QUERY}.lora_up.weight": torch.ones(16, 3)}), r"up matrix has shape \[16, 3\].* \[16, 2\]"),
        ({f"{QUERY}.lora_down.weight": torch.ones(2, 16)}, "the up matrix is missing"),
        (one(**{f"{QUERY}.alpha": torch.ones(2)}), r"alpha has shape \[2\]"),
        (one(**{f"{QUERY}.lora_down.weight": torch.ones(2, 16, dtype=torch.int8)}), "has the type int8"),
        (one(**{f"{QUERY}.lora_up.weight": torch.full((16, 2), torch.nan)}), "not finite"),
        (one(**{f"{QUERY}.alpha": torch.tensor(torch.inf)}), "not finite"),
        (one(**{f"{QUERY}.lora_up.weight": torch.full((16, 2), 1e30)}), "larger than 1e"),
        ({f"{QUERY}.lora_down.weight": torch.ones(9, 16), f"{QUERY}.lora_up.weight": torch.ones(16, 9)}, "is 9, but"),
    ],
)
def test_what_is_refused(plain: tuple, tmp_path: Path, tensors: dict, message: str) -> None:
    path = tiny_loras.write(tmp_path / "bad.safetensors", tensors)
    with pytest.raises(CheckpointError, match=message):
        KnownLoras(plain[1], 8).load("bad", str(path))


def test_a_lora_for_another_kind_says_for_which(plain: tuple, checkpoint: Callable, tmp_path: Path) -> None:
    tensors = tiny_loras.kohya(tiny_loras.draw(checkpoint("sdxl"), 1, 2, 2.0), is_xl=True)
    path = tiny_loras.write(tmp_path / "xl.safetensors", tensors, ss_base_model_version="sdxl_base_v1-0")
    with pytest.raises(CheckpointError, match="its file says that it was made for 'sdxl_base_v1-0'"):
        LoraFile.open(str(path), plain[1])


def test_files_that_are_none(plain: tuple, tmp_path: Path) -> None:
    (tmp_path / "lora.ckpt").write_bytes(b"pickle")
    (tmp_path / "short.safetensors").write_bytes(b"\x08")
    for location, message in (
        ("lora.ckpt", "is a pickle, which is not read: save the LoRA as safetensors"),
        ("short.safetensors", "not a safetensors file"),
        ("absent.safetensors", "no such file"),
        ("", "1 files|name one|not a safetensors"),
    ):
        with pytest.raises(CheckpointError, match=message):
            LoraFile.open(str(tmp_path / location) if location else str(tmp_path), plain[1])
    with pytest.raises(CheckpointError, match="has no file in safetensors"):
        (tmp_path / "empty").mkdir()
        LoraFile.open(str(tmp_path / "empty"), plain[1])


def test_a_folder_is_read_anew(plain: tuple, tmp_path: Path) -> None:
    known = KnownLoras(plain[1], 8, str(tmp_path))
    known.refresh()
    assert known.all() == []
    tiny_loras.write(tmp_path / "ink.safetensors", one(), ss_output_name="Ink v2", note="x")
    (tmp_path / "deeper").mkdir()
    tiny_loras.write(tmp_path / "deeper" / "other.safetensors", {f"{QUERY}.hada_w1_a": torch.ones(2, 16)})
    known.refresh()
    [info] = known.all()
    assert (info.name, info.alias, info.file) == ("ink", "Ink v2", "ink.safetensors") and info.metadata["note"] == "x"
    [(file, weight, text)] = known.combination([LoraUse("Ink v2", 0.5, 0.25), LoraUse("ink", 0.25, 0.0)]).parts
    assert (file.name, weight, text) == ("ink.safetensors", 0.75, 0.25)
    with pytest.raises(RequestError, match=r"'other' cannot be used: other.safetensors: the key .* is of LoHa.*: ink"):
        known.combination([LoraUse("other")])
    with pytest.raises(RequestError, match="there is no LoRA 'none'; choose one of: ink"):
        known.combination([LoraUse("none")])
    tiny_loras.write(tmp_path / "ink.safetensors", one(), note="written anew")
    with pytest.raises(CheckpointError, match="has changed since it was loaded"):
        file.check_unchanged()
    known.refresh()
    assert known.all()[0].metadata["note"] == "written anew"
    with pytest.raises(RequestError, match="no LoRA 'ink' was loaded"):
        known.unload("ink")


def test_names_and_ranks(plain: tuple, tmp_path: Path) -> None:
    path = str(tiny_loras.write(tmp_path / "ink.safetensors", one()))
    known = KnownLoras(plain[1], 5)
    known.load("ink", path)
    for name, message in (("ink", "there is a LoRA ink already"), ("a:b", "without < > : ="), ("", "without")):
        with pytest.raises(RequestError, match=message):
            known.load(name, path)
    known.load("two", path)
    known.load("three", path)
    assert len(known.combination([LoraUse("ink"), LoraUse("two")]).parts) == 2
    with pytest.raises(RequestError, match="ranks add up to 6, and a picture may use 5"):
        known.combination([LoraUse(name) for name in ("ink", "two", "three")])
    known.unload("two")
    assert [info.name for info in known.all()] == ["ink", "three"]
    with pytest.raises(RequestError, match="this server has no LoRA"):
        KnownLoras().combination([LoraUse("ink")])
    with pytest.raises(RequestError, match="the weight of 'ink' is nan"):
        LoraUse("ink", float("nan"))


def test_metadata_that_is_no_config(plain: tuple, tmp_path: Path) -> None:
    for written, message in (
        ("{", "lora_adapter_metadata in its header cannot be read"),
        (json.dumps({"unet.use_dora": True}), "has unet.use_dora True, which is not served"),
        (json.dumps({"unet.lora_alpha": 2, "unet.alpha_pattern": {"(a+)+": 1}}), "only modules' names are read"),
    ):
        path = tiny_loras.write(tmp_path / "meta.safetensors", one(), lora_adapter_metadata=written)
        with pytest.raises(CheckpointError, match=message):
            LoraFile.open(str(path), plain[1])
