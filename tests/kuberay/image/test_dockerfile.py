"""The Dockerfile against the project. It is not built in CI, where there is no container engine; test_build_steps.py
runs those of its steps that need none."""

import re
import shlex
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from apps.llm.engines.vllm.child import COMMAND
from kuberay.check.serve.vllm import known
from ray_configs.cell import CellConfig
from ray_configs.cluster.release import PODSLICE_VERSION, RAY_VERSION
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.loading import catalog, load
from ray_configs.stable_diffusion import StableDiffusionConfig
from tests.kuberay.image.dockerfile import FOLDER, ROOT, TARGETS, Dockerfile, ignored, read

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def dockerfile() -> Dockerfile:
    return read()


def test_versions_are_those_that_the_manifests_name(dockerfile: Dockerfile) -> None:
    assert dockerfile.arguments == {"RAY_VERSION": RAY_VERSION, "PODSLICE_VERSION": PODSLICE_VERSION}
    assert PROJECT["version"] == PODSLICE_VERSION


def test_the_base_is_the_pinned_ray_on_a_python_that_the_project_supports(dockerfile: Dockerfile) -> None:
    match = re.fullmatch(r"rayproject/ray:(.+)-py(\d)(\d+)-cpu", dockerfile.stages["ray"].base)
    assert match is not None
    assert match[1] == RAY_VERSION
    assert f"{match[2]}.{match[3]}" in PROJECT["requires-python"]
    requirement = next(r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "ray")
    assert requirement.specifier.contains(RAY_VERSION)


def test_every_stage_builds_on_the_base(dockerfile: Dockerfile) -> None:
    for stage in dockerfile.stages.values():
        assert stage.base in dockerfile.stages or stage.name == "ray"
    # The images share their largest layers, which a node that runs several pulls once.
    assert {target: dockerfile.stages[target].base for target in TARGETS} == {
        "llm": "packages",
        "llm-vllm": "llm",
        "stable-diffusion": "packages",
    }


def test_there_is_a_target_for_every_image_that_configs_name(dockerfile: Dockerfile) -> None:
    configs = LLMConfig(), LLMConfig(engine="vllm"), StableDiffusionConfig(), CellConfig()
    assert {config.image_name for config in configs} == set(TARGETS)
    assert set(TARGETS) <= set(dockerfile.stages)
    for name in catalog():
        config = load(name)
        images = [config.container_image] if isinstance(config, Job) else [g.image for g in config.worker_groups]
        for image in images:
            assert re.fullmatch(rf"us-docker\.pkg\.dev/PROJECT_ID/podslice/({'|'.join(TARGETS)}):0\.1\.0", image), name


def test_what_is_copied_exists_and_the_ignore_file_lets_it_in(dockerfile: Dockerfile) -> None:
    sources = [
        source
        for arguments in dockerfile.all("COPY")
        for source in [word for word in arguments.split() if not word.startswith("--")][:-1]
    ]
    assert {"pyproject.toml", "README.md", "LICENSE", "apps", "kuberay", "ray_configs"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not ignored(source), source


@pytest.mark.parametrize(
    "path",
    (
        ".git",
        ".git/config",
        ".venv/bin/python",
        "tests/conftest.py",
        "clients/bench.py",
        "tools/demo_models/language/train.py",
        ".env",
        "key.json",
        "apps/llm/__pycache__/http.pyc",
        "podslice.egg-info/PKG-INFO",
    ),
)
def test_nothing_else_enters_the_build(path: str) -> None:
    assert ignored(path)


def test_extras_are_the_projects(dockerfile: Dockerfile) -> None:
    extras = {
        target: set(re.search(r"podslice\[([^]]+)\]", " ".join(dockerfile.stages[stage].all("RUN")))[1].split(","))
        for target, stage in (("llm", "packages"), ("stable-diffusion", "stable-diffusion"))
    }
    assert extras == {"llm": {"tpu", "gcs", "batch", "otel"}, "stable-diffusion": {"tpu", "gcs", "stable-diffusion"}}
    assert extras["stable-diffusion"] <= set(PROJECT["optional-dependencies"])


def test_every_direct_dependency_is_pinned_within_its_bounds() -> None:
    pinned = {
        canonicalize_name(requirement.name): Version(next(iter(requirement.specifier)).version)
        for line in (FOLDER / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
        for requirement in [Requirement(line)]
    }
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["tpu"], *extras["gcs"], *extras["stable-diffusion"]]
    for requirement in map(Requirement, wanted):
        if requirement.name != "ray":  # by the Dockerfile's RAY_VERSION
            assert canonicalize_name(requirement.name) in pinned, f"add {requirement.name} to constraints.txt"
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement
    assert "ray" not in pinned


def test_pytorch_is_the_cpu_build_that_the_tests_use(dockerfile: Dockerfile) -> None:
    constraints = (FOLDER / "constraints.txt").read_text()
    tested = next(r for r in map(Requirement, PROJECT["optional-dependencies"]["test"]) if r.name == "torch")
    assert f"torch{tested.specifier}+cpu\n" in constraints
    for run in dockerfile.all("RUN"):
        assert ("https://download.pytorch.org/whl/cpu" in run) == bool(re.search(r"\storch\s*$", run)), run
    assert not any("torch" in run for run in dockerfile.stages["packages"].all("RUN"))


def test_every_installation_of_packages_keeps_to_the_constraints_and_to_ray(dockerfile: Dockerfile) -> None:
    installations = [run for run in dockerfile.all("RUN") if "pip install" in run and "--no-deps" not in run]
    assert len(installations) == 2
    for run in installations:
        assert "--constraint=/home/ray/packages/constraints.txt" in run
        assert '"ray[serve]==${RAY_VERSION}"' in run


def test_code_comes_after_all_packages(dockerfile: Dockerfile) -> None:
    assert [copy.split()[-3:-1] for copy in dockerfile.stages["packages"].all("COPY")] == [
        ["pyproject.toml", "kuberay/image/constraints.txt"]
    ]
    for target in TARGETS:
        runs = dockerfile.stages[target].all("RUN")
        assert dockerfile.stages[target].all("COPY") == []
        if target == "llm-vllm":  # vLLM stands on the code of `llm`, in an environment of its own
            continue
        assert ["from=wheel" in run for run in runs] == [False] * (len(runs) - 1) + [True]


def test_vllm_is_where_replicas_look_for_it_and_its_options_are_recorded(dockerfile: Dockerfile) -> None:
    stage = dockerfile.stages["llm-vllm"]
    variables = dict(word.split("=", 1) for arguments in stage.all("ENV") for word in shlex.split(arguments))
    (run,) = stage.all("RUN")
    assert variables == {COMMAND: "/home/ray/vllm/bin/vllm"} and f"test -x {variables[COMMAND]}" in run
    ((_, version),) = (argument.split("=") for argument in stage.all("ARG"))
    assert version in known() and '"vllm-torchtpu==${VLLM_TORCHTPU_VERSION}"' in run


def test_serve_finds_haproxy_where_the_image_has_it(dockerfile: Dockerfile) -> None:
    """The names that apps/serving/ingress/direct_ingress.py sets, and both made before they are named."""
    stage = dockerfile.stages["packages"]
    variables = dict(word.split("=", 1) for arguments in stage.all("ENV") for word in shlex.split(arguments))
    assert set(variables) == {"RAY_SERVE_HAPROXY_BINARY_PATH", "PODSLICE_HAPROXY_BINARY"}
    code = (ROOT / "apps" / "serving" / "ingress" / "direct_ingress.py").read_text()
    for name, path in variables.items():
        assert f'os.environ["{name}"]' in code
        assert any(re.search(rf"ln --symbolic .*\s{path}\s", run) for run in stage.all("RUN")), path


def test_no_user_but_rays_and_no_probe_or_secret(dockerfile: Dockerfile) -> None:
    instructions = {name for stage in dockerfile.stages.values() for name, _ in stage.instructions}
    assert instructions <= {"ARG", "COPY", "ENV", "LABEL", "RUN"}
    assert not re.search(r"(?i)token|password|secret|api_?key", " ".join(dockerfile.all("ENV") + dockerfile.all("ARG")))


def test_labels_say_what_the_image_is(dockerfile: Dockerfile) -> None:
    for target in TARGETS:
        labels = " ".join(dockerfile.stages["packages"].all("LABEL") + dockerfile.stages[target].all("LABEL"))
        for label in ("title", "description", "version", "licenses", "base.name"):
            assert f"org.opencontainers.image.{label}=" in labels
        assert f'"podslice {target}"' in labels


def test_the_shell_of_every_step_parses(dockerfile: Dockerfile) -> None:
    runs = dockerfile.all("RUN")
    assert len(runs) == 7
    for run in runs:
        command = re.sub(r"^(--mount=\S+\s+)+", "", run)
        subprocess.run(["bash", "-n", "-c", command], check=True)
