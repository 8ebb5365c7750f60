"""Every file of examples/ runs as its first line says. The cell's session is run by tests/cell, which has a cell."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http_servers import served

ROOT = Path(__file__).parents[2]
SMALL = {"max_batch_size": 4, "max_step_tokens": 8, "max_model_len": 256}
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def run(example: str, *arguments: str, cwd: Path = ROOT) -> str:
    """What the example prints; PYTHONPATH stands for an installed package."""
    program = [sys.executable, str(ROOT / "examples" / example), *arguments]
    done = subprocess.run(program, cwd=cwd, capture_output=True, text=True, timeout=280, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_offline() -> None:
    answers = run("offline.py").splitlines()
    assert answers[0] == "How many days are in a week? There are seven days in a week."
    assert len(answers) == 3


def test_a_config_of_ones_own() -> None:
    from kuberay.render import render
    from ray_configs.loading import load

    objects = render(load(str(ROOT / "examples" / "my_service.py")))
    service = next(each for each in objects if each["kind"] == "RayService")
    group, routers = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert (routers["groupName"], routers["replicas"]) == ("routers", 2)
    selectors = group["template"]["spec"]["nodeSelector"]
    assert selectors["cloud.google.com/gke-tpu-topology"] == "2x2" and selectors["cloud.google.com/gke-spot"] == "true"


def test_slices_that_may_go_have_routers_that_stay() -> None:
    from kuberay.render import render
    from ray_configs.loading import load

    objects = render(load(str(ROOT / "examples" / "spot_slices.py")))
    service = next(each for each in objects if each["kind"] == "RayService")
    groups = {group["groupName"]: group for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]}
    spot = {name for name, group in groups.items() if "gke-spot" in str(group["template"]["spec"])}
    assert spot == {"tpu-v5e-2x4-4t"} and groups["routers"]["replicas"] == 2


def test_a_model_by_vllm_has_an_image_of_its_own_where_the_chips_are() -> None:
    from kuberay.check import check
    from kuberay.render import render
    from ray_configs.loading import load

    service = load(str(ROOT / "examples" / "vllm_engine.py"))
    objects = render(service)
    assert [finding for finding in check(objects, service) if finding.severity != "note"] == []
    cluster = next(each for each in objects if each["kind"] == "RayService")["spec"]["rayClusterConfig"]
    groups = {group["groupName"]: str(group["template"]) for group in cluster["workerGroupSpecs"]}
    by_vllm = {name for name, template in groups.items() if "/llm-vllm:" in template}
    assert by_vllm == {name for name, template in groups.items() if "google.com/tpu" in template} and len(groups) == 3
    assert "/llm:" in str(cluster["headGroupSpec"])


@pytest.fixture(scope="module")
def language_model() -> Iterator[str]:
    from apps.llm.http.app import http_app
    from apps.llm.served.text_model import TextModel
    from apps.llm.text import Engine, EngineConfig

    engine = Engine.load(EngineConfig(**SMALL))
    try:
        with served(http_app(TextModel("demo", engine, 60))) as url:
            yield url
    finally:
        engine.shutdown()


@pytest.mark.slow
def test_openais_client(language_model: str) -> None:
    said = run("openai_client.py", language_model)
    assert said.startswith("There are seven days in a week.\n(") and said.endswith("tokens, by demo)\n")


@pytest.mark.slow
def test_a_tool_in_two_turns(language_model: str) -> None:
    said = run("weather_tool.py", language_model)
    assert said == 'get_weather({"city": "Paris"})\nIt is sunny and 18 degrees in Paris.\n'


@pytest.mark.slow
def test_images(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    from apps.stable_diffusion.engine.engine import Engine
    from apps.stable_diffusion.http.app import http_app
    from apps.stable_diffusion.pictures import PictureModel
    from ray_configs.stable_diffusion import StableDiffusionConfig

    config = StableDiffusionConfig.demo(max_batch_size=1, num_inference_steps=2)
    engine = Engine.load(config)
    try:
        with served(http_app(PictureModel(config, engine))) as url:
            said = run("images.py", url, cwd=tmp_path)
    finally:
        engine.shutdown()
    assert said == "picture-0.png: seed 7\npicture-1.png: seed 8\n"
    assert all((tmp_path / f"picture-{n}.png").read_bytes().startswith(b"\x89PNG") for n in range(2))


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_what_an_example_needs_besides_is_named(example: str) -> None:
    """Oracle: the dependencies in pyproject.toml. What imports openai says `pip install openai` in its first lines."""
    module = ast.parse((ROOT / "examples" / example).read_text())
    imported = {name.name for node in ast.walk(module) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in ast.walk(module) if isinstance(node, ast.ImportFrom)}
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    brought = {re.split(r"[\[><=]", each)[0] for each in needed} | sys.stdlib_module_names | {"apps", "ray_configs"}
    besides = {name.split(".")[0] for name in imported} - brought
    said = re.findall(r"pip install (\S+)", ast.get_docstring(module) or "")
    assert set(said) == besides
