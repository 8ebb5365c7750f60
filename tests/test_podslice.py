"""The command `podslice`: every command by one name, in a moment, and what `serve` starts."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from podslice import commandline

COMMANDS = (
    *("serve", "serve-images", "plan", "render", "check", "local", "apply", "diff", "status", "delete"),
    *("node-pools", "catalog", "prepare", "generate", "smoke"),
)


def podslice(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "podslice", *arguments]
    return subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)


def test_help_lists_every_command_and_imports_neither_jax_nor_ray() -> None:
    program = (
        "import sys\nfrom podslice.commandline import main\nsys.argv[1:] = ['--help']\n"
        "try:\n    main()\nfinally:\n    print('LOADED', sorted({'jax', 'ray', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("LOADED []\n")
    listed = re.findall(r"^  ([a-z-]+) {2,}\S", done.stdout.partition("Commands:")[2], re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    done = CliRunner().invoke(commandline.app, [name, "--help"])
    assert done.exit_code == 0
    assert f" {name} " in done.stdout
    assert "--help" in done.stdout


def test_a_command_does_what_its_module_does() -> None:
    assert podslice("render", "ray_configs.catalog.local").stdout.startswith("# ")
    wrong = podslice("render", "no.such.module")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("podslice: there is no module 'no.such.module'")
    none = podslice("plan", "ray_configs.catalog.local")
    assert (none.returncode, "no slice to plan for" in none.stderr) == (2, True)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was given to `serve run`; a file's content, for it is gone afterwards."""
    found: list[Any] = []

    def call(command: list[str]) -> int:
        assert command[1:4] == ["-m", "ray.serve.scripts", "run"]
        found.extend(YAML().load(Path(part)) if part.endswith(".yaml") else part for part in command[4:])
        return 3

    monkeypatch.setattr(subprocess, "call", call)
    return found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve"], ["apps.llm:app"]),
        (["serve", "model=a/b", "max_batch_size=2"], ["apps.llm:build", "model=a/b", "max_batch_size=2"]),
        (["serve-images"], ["apps.stable_diffusion:app"]),
        (["serve-images", "model=a/b"], ["apps.stable_diffusion:build", "model=a/b"]),
    ],
)
def test_serve_is_serve_run(ran: list[Any], arguments: list[str], expected: list[str]) -> None:
    done = CliRunner().invoke(commandline.app, arguments)
    assert (done.exit_code, ran) == (3, expected)


def test_serve_takes_a_config_whole(ran: list[Any]) -> None:
    assert CliRunner().invoke(commandline.app, ["serve", "ray_configs.catalog.whole_graph"]).exit_code == 3
    (config,) = ran
    assert len(config["applications"]) > 1
    for arguments in (
        ["serve", "ray_configs.catalog.local", "model=x"],
        ["serve", "ray_configs.catalog.smoke_multi_host"],
    ):
        done = podslice(*arguments)
        assert (done.returncode, done.stderr.startswith("podslice: ")) == (2, True)
