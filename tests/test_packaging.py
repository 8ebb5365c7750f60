"""What stands beside the code: the lock file, the workflow, and the paths that CONTRIBUTING.md names."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("tpu", "train", "stable-diffusion", "gcs", "batch", "test")


def bare(requirement: str) -> str:
    return re.split(r"[\[<>=! ]", requirement)[0].lower().replace("_", "-")


def test_the_lock_file_has_every_package_that_tests_need_and_no_address() -> None:
    lines = [line for line in (ROOT / "requirements-test.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    wanted = [*PROJECT["dependencies"], *(name for extra in EXTRAS for name in PROJECT["optional-dependencies"][extra])]
    assert {bare(name) for name in wanted} - {"podslice"} <= {bare(line) for line in lines}


def test_the_workflow_runs_what_people_run() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())
    ran = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert ran == ["make lint", "make test"]
    assert {command.removeprefix("make ") for command in ran} <= set(targets)


def test_contributing_names_what_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = [name for name in re.findall(r"`([\w./-]+)`", text) if "/" in name or name.endswith((".md", ".lock"))]
    assert len(named) > 15
    engine = ROOT / "apps/llm/engine"
    assert [name for name in named if not (ROOT / name).exists() and not (engine / name).exists()] == []
    for target in re.findall(r"make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
