"""Checkpoints wherever they lie, and whatever is wrong with them: each error names the file or the field."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from apps.llm.engine.model import params
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.weights.checkpoint import Checkpoint, CheckpointError
from tests.hub import hub
from tests.llm.engine import tiny_models


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(llama, tmp_path / "model")


def config(folder: Path, **changes: object) -> None:
    """Change config.json; a value of None takes the field out."""
    file = folder / "config.json"
    fields = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))


def read(folder: Path | str) -> dict:
    """Every parameter as numpy arrays, through the declarations, as loading does."""
    checkpoint = Checkpoint(str(folder))
    arch = checkpoint.architecture()
    tree = declare(arch, arch.split(1))
    return params._map(lambda param: np.array(param.read(checkpoint, (slice(None),) * len(param.shape))), tree)


def rewrite_header(folder: Path, change: Callable[[dict], object]) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header = json.dumps(change(header) or header).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


def truncate(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
    "cut short": (lambda f: truncate(f / "model.safetensors", 30000), "model.safetensors is cut short.*tensor"),
    "cut in the header": (lambda f: truncate(f / "model.safetensors", 100), "model.safetensors .*cut short"),
    "empty": (lambda f: truncate(f / "model.safetensors", 0), "model.safetensors .*0 bytes"),
    "damaged header": (
        lambda f: (f / "model.safetensors").write_bytes((9).to_bytes(8, "little") + b'{"a": [}}' + b"x" * 99),
        "model.safetensors: damaged",
    ),
    "a header of another form": (lambda f: rewrite_header(f, lambda h: ["x"]), "model.safetensors: damaged"),
    "an entry without offsets": (
        lambda f: rewrite_header(f, lambda h: h["lm_head.weight"].pop("data_offsets") and None),
        "model.safetensors: damaged",
    ),
    "missing tensor": (
        lambda f: rewrite_header(f, lambda h: h.pop("model.layers.1.mlp.up_proj.weight") and None),
        "tensor model.layers.1.mlp.up_proj.weight is missing",
    ),
    "other sizes": (
        lambda f: config(f, intermediate_size=97),
        r"model.safetensors: tensor model.layers.0.mlp.down_proj.weight has shape \(64, 96\), .*\(64, 97\)",
    ),
    "fewer heads": (lambda f: config(f, num_attention_heads=2, num_key_value_heads=1), r"o_proj.weight has shape"),
    "smaller vocabulary": (lambda f: config(f, vocab_size=300), r"embed_tokens.weight has shape \(320, 64\)"),
    "pickled weights": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "pickled weights are not supported",
    ),
    "config that is no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json is not valid JSON"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "index without files": (
        lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        "model.safetensors.index.json",
    ),
    "index of an absent file": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002.safetensors"}}'),
        "model-00002.safetensors is missing, but the index names it",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named(folder: Path, kind: str) -> None:
    damage, message = DAMAGE[kind]
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        read(folder)


UNSUPPORTED = {
    "model_type 'mamba'": {"model_type": "mamba"},
    "rope_type 'llama3' needs the field 'factor'": {"rope_parameters": {"rope_type": "llama3"}},
    "rope_type 'linear' needs the field 'factor'": {"rope_parameters": {"rope_type": "linear"}},
    "rope_type 'longrope' needs the field 'short_factor'": {
        "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 64}
    },
    "short_factor has 3 numbers; heads of 16 channels need 8": {
        "rope_parameters": {
            "rope_type": "longrope",
            "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 3,
            "long_factor": [1.0] * 8,
        }
    },
    "rope_type 'other' is not supported": {"rope_parameters": {"rope_type": "other"}},
    "hidden_act 'relu'": {"hidden_act": "relu"},
    "hidden_size 64 is not a multiple of num_attention_heads 5": {"num_attention_heads": 5, "head_dim": None},
    "4 attention heads are not a multiple of 3": {"num_key_value_heads": 3},
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_unsupported_models_are_named(folder: Path, message: str) -> None:
    config(folder, **UNSUPPORTED[message])
    with pytest.raises(UnsupportedModel, match=message):
        read(folder)


def test_configs_of_before_transformers_5() -> None:
    old = {"model_type": "llama", "hidden_act": "silu"} | tiny_models.SIZES
    scaling = {name: value for name, value in tiny_models.LLAMA3_ROPE.items() if name != "rope_theta"}
    new = from_hf_config(old | {"rope_parameters": tiny_models.LLAMA3_ROPE})
    assert from_hf_config(old | {"rope_theta": 500000.0, "rope_scaling": scaling}) == new
    assert from_hf_config(old | {"rope_theta": 10000.0, "rope_scaling": None}) == from_hf_config(old)


def test_no_such_place(tmp_path: Path) -> None:
    for place in (str(tmp_path / "absent"), "~/no/such/folder", "memory://absent"):
        with pytest.raises(CheckpointError, match="no such folder"):
            Checkpoint(place)


@pytest.mark.parametrize("shards", [1, 3])
def test_remote_is_as_local(tmp_path: Path, shards: int) -> None:
    options = {"max_shard_size": "100KB"} if shards > 1 else {}
    tiny_models.save(tiny_models.make("qwen2"), tmp_path, **options)
    tiny_models.save_tokenizer(tmp_path)
    url = f"memory://models/{shards}"
    fsspec.filesystem("memory").put(str(tmp_path), f"/models/{shards}", recursive=True)
    local, remote = read(tmp_path), read(url)
    params.jax.tree.map(np.testing.assert_array_equal, local, remote)
    with Checkpoint(url).tokenizer_folder() as folder:
        assert Path(folder, "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    assert not Path(folder).exists()
    with Checkpoint(str(tmp_path)).tokenizer_folder() as folder:
        pass
    assert Path(folder).samefile(tmp_path), "its own, which stays"


def test_rows(llama: Path) -> None:
    name = "model.layers.0.mlp.gate_proj.weight"
    whole = load_file(llama / "model.safetensors")[name]
    part = Checkpoint(str(llama)).read(name, (96, 64), slice(10, 30))
    assert (part == whole[10:30]).all() and part.shape == (20, 64)


def test_hub_id(llama: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(llama, tmp_path / "repository")
    shutil.copy(repository / "model.safetensors", repository / "consolidated.safetensors")  # the same weights again
    (repository / "large.json").write_text(" " * 3_500_000)
    (events := tmp_path / "events").touch()
    script = (
        "import os\n"
        "from apps.llm.engine.weights.checkpoint import Checkpoint, CheckpointError\n"
        "from apps.llm.engine.weights.model import Model\n"
        "from ray_configs.llm import EngineConfig\n"
        "leader = Model.open(EngineConfig(model='someone/tiny'), weights=False)\n"
        "print('model.safetensors' in os.listdir(leader.checkpoint.location))\n"
        "print(Checkpoint('someone/tiny').read('model.norm.weight', (64,))[:3].tolist())\n"
        "print('consolidated.safetensors' in os.listdir(Checkpoint('someone/tiny').location))\n"
        "try:\n    Checkpoint('someone/else')\nexcept CheckpointError as error:\n    print(error)\n"
    )
    with hub(repository, tmp_path) as environment:
        found = subprocess.run(
            [sys.executable, "-c", script],
            env=tiny_models.environment(**environment, PODSLICE_EVENTS=str(events)),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert found.returncode == 0, found.stderr[-3000:]
    fetched, weights, twice, error = found.stdout.splitlines()[:4]
    assert twice == "False", "weights that are there twice are fetched once"
    assert fetched == "False", "who leads a slice of several hosts needs its config and tokenizer alone"
    assert json.loads(weights) == load_file(llama / "model.safetensors")["model.norm.weight"][:3].tolist()
    assert "someone/else: neither a local folder nor a model" in error
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert {event["part"] for event in told} == {"downloading, MB"}
    assert 3 <= told[-1]["done"] == told[-1]["total"] and len(told) < 20
