"""The command `podslice`: every command by one name, in a moment, and what each does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from podslice import commands

COMMANDS = (
    *("serve", "serve-images", "plan", "render", "check", "local", "apply", "diff", "status", "delete"),
    *("node-pools", "catalog", "prepare", "generate", "smoke", "playground"),
)


def podslice(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "podslice", *arguments]
    return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)


@pytest.mark.slow
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
    done = CliRunner().invoke(commands.app, [name, "--help"])
    assert done.exit_code == 0
    assert f" {name} " in done.stdout
    assert "--help" in done.stdout


@pytest.mark.slow
def test_a_command_does_what_its_module_does() -> None:
    assert podslice("render", "ray_configs.catalog.local").stdout.startswith("# ")
    wrong = podslice("render", "no.such.module")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("podslice: there is no module 'no.such.module'")
    none = podslice("plan", "ray_configs.catalog.local")
    assert (none.returncode, "no slice to plan for" in none.stderr) == (2, True)
