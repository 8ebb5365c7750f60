"""`args` of Podslice's own builders, as the builders would read them."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from kuberay.check import check, read_yaml
from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import Change, changed, expect

GROUP = "spec rayClusterConfig workerGroupSpecs 0"
MANIFESTS = Path(__file__).parents[4] / "kuberay" / "manifests"


def application(path: str = "apps.llm:build", **args: Any) -> Change:
    lines = "".join(f"    {key}: {value}\n" for key, value in args.items())
    return ("spec serveConfigV2", f"applications:\n- name: llm\n  import_path: {path}\n  args:\n{lines or '    {}'}")


GOOD = {"model": "/models/a", "slice": "v5e:2x4:8t", "min_replicas": 2, "max_replicas": 2}


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "expected"),
    [
        ([application(**GOOD, max_model_length=1)], "serve-args", "error", ["max_model_length", "max_model_len"]),
        ([application(**GOOD, quantize_weights="int4")], "serve-args", "error", ["quantize_weights", "int8"]),
        ([application(**GOOD | {"min_replicas": -1})], "serve-args", "error", ["min_replicas"]),
        (
            [application(**GOOD | {"max_replicas": 1})],
            "serve-args",
            "error",
            ["applications[0].args", "max_replicas", "1", "min_replicas"],
        ),
        ([application(**GOOD | {"slice": "v5e:3x4"})], "serve-args", "error", ["slice", "3x4"]),
        ([application("apps.cell:build", name="My cell")], "serve-args", "error", ["args.name", "apps.cell:build"]),
        (
            [application("apps.stable_diffusion:build", guidance=2)],
            "serve-args",
            "error",
            ["guidance", "StableDiffusionConfig"],
        ),
        (
            [application(**GOOD | {"slice": "v6e:2x4:8t"})],
            "serve-args",
            "error",
            ["slice", "v6e:2x4:8t", "v5e:2x4"],
        ),
        (
            [application(**GOOD | {"min_replicas": 3, "max_replicas": 3})],
            "serve-args",
            "error",
            ["min_replicas", "3", "2"],
        ),
        (
            [application(**GOOD | {"max_replicas": 3})],
            "serve-args",
            "warning",
            ["max_replicas", "3", "maxReplicas"],
        ),
        (
            [application("apps.lllm:build")],
            "serve-import",
            "warning",
            ["import_path", "apps.lllm:build", "apps.llm:build"],
        ),
        ([application("apps.llm:biuld")], "serve-import", "warning", ["import_path", "apps.llm:build"]),
        ([application("app.cell:build")], "serve-import", "warning", ["import_path", "apps.cell:build"]),
    ],
)
def test_arguments_that_the_builder_refuses(
    changes: list[Change], rule: str, severity: str, expected: list[str]
) -> None:
    expect(changed(good.service(), *changes), rule, severity, *expected)


@pytest.mark.parametrize(
    "change",
    [
        application(**GOOD),
        application(**GOOD | {"slice": "{{ slice }}"}),
        application("apps.llm:app"),
        application("serve_app:build", colour="red"),
        application("my_apps.llm_server:app", model="a"),
    ],
)
def test_arguments_that_are_fine_or_not_ours(change: Change) -> None:
    assert good.grave(changed(good.service(), change)) == []


def test_more_slices_make_room() -> None:
    args = application(**GOOD | {"min_replicas": 3, "max_replicas": 3})
    assert good.grave(changed(good.service(), args, (f"{GROUP} maxReplicas", 3))) == []


def test_the_field_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    objects = changed(good.service(), application(**GOOD, max_model_length=1))
    with path.open("w") as file:
        from ruamel.yaml.scalarstring import LiteralScalarString

        objects[0]["spec"]["serveConfigV2"] = LiteralScalarString(objects[0]["spec"]["serveConfigV2"])
        YAML().dump(objects[0], file)
    (found,) = [f for f in check(read_yaml(path)) if f.severity == "error"]
    assert found.where.endswith("serveConfigV2 -> applications[0].args.max_model_length")
    assert "max_model_length" in path.read_text().splitlines()[(found.line or 0) - 1]


@pytest.mark.parametrize("name", sorted(path.name for path in MANIFESTS.glob("*.yaml")))
def test_our_own_manifests_pass_and_a_misspelt_argument_does_not(name: str) -> None:
    text = (MANIFESTS / name).read_text()
    objects = read_yaml(MANIFESTS / name)
    assert [f for f in check(objects) if f.severity == "error"] == []
    if "      args:\n" in text:
        service = next(item for item in objects if item["kind"] == "RayService")
        service["spec"]["serveConfigV2"] = service["spec"]["serveConfigV2"].replace(
            "  args:\n", "  args:\n    colour: red\n"
        )
        assert "serve-args" in {f.rule for f in check(objects) if f.severity == "error"}
