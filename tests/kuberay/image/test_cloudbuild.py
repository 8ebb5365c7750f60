"""cloudbuild.yaml: it builds the Dockerfile's targets and pushes them under the names that the manifests have."""

from typing import Any

import pytest
import yaml

from ray_configs.cluster.release import image
from tests.kuberay.image.dockerfile import FOLDER, ROOT, TARGETS, read


@pytest.fixture(scope="module")
def build() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "cloudbuild.yaml").read_text())


def option(step: dict[str, Any], name: str) -> str:
    values = [argument.split("=", 1)[1] for argument in step["args"] if argument.startswith(f"--{name}=")]
    assert len(values) == 1, name
    return values[0]


def test_a_step_for_each_target_tags_the_image_that_the_manifests_name(build: dict[str, Any]) -> None:
    assert [option(step, "target") for step in build["steps"]] == list(TARGETS)
    assert set(TARGETS) <= set(read().stages)
    for step in build["steps"]:
        assert step["args"][0] == "build"
        assert step["args"][-1] == "."
        assert option(step, "file") == "kuberay/image/Dockerfile"
        assert option(step, "tag") == image(option(step, "target"), "$PROJECT_ID")


def test_both_are_pushed(build: dict[str, Any]) -> None:
    assert build["images"] == [image(target, "$PROJECT_ID") for target in TARGETS]


def test_the_last_pushed_image_is_the_cache(build: dict[str, Any]) -> None:
    for step in build["steps"]:
        assert option(step, "cache-from") == option(step, "tag")
        assert option(step, "build-arg") == "BUILDKIT_INLINE_CACHE=1"
        # Bind mounts and Dockerfile.dockerignore are BuildKit's.
        assert step["env"] == ["DOCKER_BUILDKIT=1"]


def test_the_machine_is_named_and_the_time_limited(build: dict[str, Any]) -> None:
    assert build["options"]["machineType"]
    assert build["options"]["diskSizeGb"] >= 50
    assert 600 < int(build["timeout"].removesuffix("s")) <= 7200


def test_gcloud_uploads_neither_the_virtual_environment_nor_build_output() -> None:
    """Without a .gcloudignore, gcloud leaves out .git and what .gitignore names."""
    assert not (ROOT / ".gcloudignore").exists()
    assert {".venv/", "build/", "dist/", "__pycache__/"} <= set((ROOT / ".gitignore").read_text().split())
