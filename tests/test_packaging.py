"""What stands beside the code: the lock file, the workflow, and the paths that CONTRIBUTING.md names."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = ("tpu", "train", "stable-diffusion", "gcs", "batch", "otel", "test")


def bare(requirement: str) -> str:
    return re.split(r"[\[<>=! ]", requirement)[0].lower().replace("_", "-")


def locked(name: str) -> dict[str, str]:
    """Versions by package."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "a lock file has versions, and no address"
    return {bare(line): line.partition("==")[2] for line in lines}


def test_the_lock_file_has_every_package_that_tests_need() -> None:
    wanted = [*PROJECT["dependencies"], *(name for extra in EXTRAS for name in PROJECT["optional-dependencies"][extra])]
    assert {bare(name) for name in wanted} - {"podslice"} <= locked("requirements-test.lock").keys()


def test_every_lower_bound_is_what_the_tests_ran_with() -> None:
    """Oracle: requirements-test.lock, the versions that the tests last ran with."""
    versions = locked("requirements-test.lock")
    named = [*PROJECT["dependencies"], *(name for extra in EXTRAS for name in PROJECT["optional-dependencies"][extra])]
    for requirement in {name for name in named if not name.startswith("podslice[")}:
        (bound,) = re.findall(r"[>=]=([\w.]+)", requirement)
        if bare(requirement) == "ray":  # all 2.60 there are
            assert versions["ray"].startswith(f"{bound}.")
        elif bare(requirement) == "pillow":  # an older one is tried with the playground
            assert int(bound.partition(".")[0]) < int(versions["pillow"].partition(".")[0])
        else:
            assert bound == versions[bare(requirement)], requirement


def test_the_clients_that_were_tried_have_the_versions_of_the_lock_files() -> None:
    clients = locked("requirements-clients.lock")
    assert {bare(name) for name in PYPROJECT["dependency-groups"]["test-clients"]} <= clients.keys()
    page = (ROOT / "docs/serve/clients.md").read_text()
    told = dict(re.findall(r"^\| \[([\w-]+)\]\S+ \| (\S+) \|", page, re.MULTILINE))
    tried = clients | {name: locked("requirements-test.lock")[name] for name in ("openai", "anthropic")}
    tried |= dict(re.findall(r"@[\w-]+/([\w-]+)@([\d.]+)", (ROOT / "Makefile").read_text()))  # npm's
    assert len(told) == 8 and told == {name: tried[name] for name in told}


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
