"""What may be published, and what of a request is never followed."""

from pathlib import Path
from typing import Any

import pytest

from apps.cell.desired.state import Published
from apps.cell.errors import CellError
from apps.cell.registry import Registry, catalog_models
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig

SAXML = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test"


def config(path: str, checkpoint: str = "None", overrides: dict[str, Any] | None = None, **cell: Any) -> LLMConfig:
    model = Published(model_path=path, checkpoint=checkpoint, overrides=overrides or {}, order=0)
    return Registry(CellConfig(**cell)).config("/sax/test/m", model)


def test_saxmls_own_name_as_in_its_tutorial() -> None:
    found = config(SAXML, slice="v5e:4x8", min_replicas=2, max_replicas=2)
    assert (found.model, found.random_weights, found.quantize_weights) == (
        "lm_cloud.LmCloudSpmd175B32Test",
        True,
        "int8",
    )
    assert found.served_name == "/sax/test/m" and str(found.slice) == "v5e:4x8"
    assert found == config("lm_cloud.LmCloudSpmd175B32Test", slice="v5e:4x8")


def test_a_tiny_cell_publishes_tiny_models() -> None:
    found = config(SAXML, tiny=True)
    assert found.tiny and found.max_model_len == 256 and found.max_batch_size == 8


def test_every_language_model_of_the_catalog() -> None:
    assert {"catalog.local", "catalog.spmd_175b", "catalog.llama3_8b_v5e"} <= set(catalog_models())
    for name in catalog_models():
        found = config(name, slice="v6e:2x4:8t")
        assert str(found.slice) == "v6e:2x4:8t" and found.random_weights, f"{name}: on the cell's slices, random"
        assert config(f"ray_configs.{name}", slice="v6e:2x4:8t") == found
    own = config("catalog.llama3_8b_v5e", checkpoint="")
    assert own.model == "meta-llama/Meta-Llama-3-8B" and not own.random_weights
    other = config("catalog.llama3_8b_v5e", checkpoint="huggingface:me/my-llama")
    assert other.model == "me/my-llama" and other.max_model_len == own.max_model_len


def test_the_hub() -> None:
    assert config("huggingface:google/gemma-2b", "").model == "google/gemma-2b"
    assert config("huggingface:google/gemma-2b", "None").random_weights
    with pytest.raises(CellError, match="hub_models=False"):
        config("huggingface:google/gemma-2b", "", hub_models=False)
    for wrong in ("gemma", "a/b/c", "/etc/passwd", "../x/y", "~root/x", "a/..", "./x"):
        with pytest.raises(CellError, match="OWNER/NAME"):
            config(f"huggingface:{wrong}", "")


def test_by_vllm_but_with_no_arguments_of_a_publishers() -> None:
    """Some of them name code to import, or files to read."""
    found = config("huggingface:zai-org/GLM-4.5-Air", "", {"engine": "vllm"}, slice="v6e:4x4")
    assert (found.engine, found.vllm_args, str(found.slice)) == ("vllm", {}, "v6e:4x4")
    with pytest.raises(CellError, match="'vllm_args' is unknown or not allowed"):
        config("huggingface:a/b", "", {"engine": "vllm", "vllm_args": {"middleware": ["os.system"]}})
    with pytest.raises(CellError, match="max_adapters is not for engine='vllm'"):
        config("huggingface:a/b", "", {"engine": "vllm", "max_adapters": 2})


def test_folders_under_the_roots_alone(tmp_path: Path) -> None:
    root = tmp_path / "models"
    (root / "mine").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (root / "way-out").symlink_to(tmp_path / "secret")
    roots = (str(root), "gs://bucket/models")
    for good in (f"{root}/mine", f"{root}/not-there-yet", "gs://bucket/models/x", "gs://bucket/models/x/y"):
        assert config(good, "", model_roots=roots).model == good
    for bad in (
        f"{tmp_path}/secret",
        f"{root}/way-out",
        f"{root}/../secret",
        f"{root}-2/x",
        "gs://bucket/models/../other",
        "gs://bucket/models-2/x",
        "gs://other/models/x",
        "s3://bucket/models/x",
        "file:///etc",
        f"{root}/mine::file:///etc",
        f"{root}/mine::file://{tmp_path}/secret",
        f"gs://bucket/models::file://{tmp_path}/secret",
        f"file://{root}/way-out",
        "gs://bucket/models/%2e%2e/other",
        f"{root}/mine\0",
        "/",
    ):
        for path, checkpoint in ((bad, ""), ("catalog.local", bad)):
            with pytest.raises(CellError, match="not below any folder"):
                config(path, checkpoint, model_roots=roots)


@pytest.mark.parametrize(
    "path",
    ["os.system", "apps.llm.server", "ray_configs.catalog", "catalog.nothing", "lm_cloud.Nothing", "", "builtins.eval"],
)
def test_no_name_is_imported(path: str) -> None:
    with pytest.raises(CellError, match=r"registered|catalog"):
        config(path)


def test_a_model_without_weights_takes_none() -> None:
    with pytest.raises(CellError, match="random weights only"):
        config("lm_cloud.LmCloudSpmd2BTest", checkpoint="huggingface:a/b")


def test_replicas_keep_no_responses() -> None:
    """The id of one would name neither its model nor its replica."""
    assert config("catalog.local").kept_responses == 0
    with pytest.raises(CellError, match="override 'stored_responses'"):
        config("catalog.local", overrides={"stored_responses": 5})


def test_overrides() -> None:
    assert config("catalog.local", overrides={"BATCH_SIZE": 4, "max_model_len": 64}).max_batch_size == 4
    for name in ("model", "slice", "api_keys", "compile_cache", "min_replicas", "nonsense"):
        with pytest.raises(CellError, match=f"override '{name}'.*max_batch_size"):
            config("catalog.local", overrides={name: 1})
    with pytest.raises(CellError, match=r"(?s)max_batch_size.*greater than or equal to 1"):
        config("catalog.local", overrides={"max_batch_size": 0})
