"""Runs the scripts with programs in gcloud's and kubectl's place that note how they were called."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

PRETENDER = r"""#!/bin/bash
printf '%s\0' "$#" "${0##*/}" "$@" >>"$CALLS"
printf '%s\0' "${CLOUDSDK_CORE_PROJECT-}" >"$CALLS.project"
for word in "$@"; do
  case $word in
    --from-file=*) printf '%s\0' "$(cat "${word##*=}")" >>"$CALLS.secrets" ;;
    --system-config-from-file=*) printf '%s\0' "$(cat "${word##*=}")" >>"$CALLS.node-configs" ;;
  esac
done
if [[ -n ${FAILS-} && $* == *"$FAILS"* ]]; then exit 9; fi
case " $* " in
  *" projects describe "*) echo 12345 ;;
  *" get crd rayservices.ray.io "*) echo "$OPERATOR_MARKS" ;;
  *" describe "* | *" get "*) exit "$FOUND" ;;
  *" list "*"name!=default-pool"*) echo -n "$OTHER_POOLS" ;;
  *" list "*) echo -n "$LISTED"; exit "$LIST_STATUS" ;;
esac
"""


@dataclass(frozen=True)
class Call:
    program: str
    arguments: tuple[str, ...]

    @property
    def words(self) -> str:
        """The command without its flags: `container clusters create saxml`."""
        return " ".join(argument for argument in self.arguments if not argument.startswith("--"))

    @property
    def flags(self) -> dict[str, str | bool]:
        given = [argument[2:].partition("=") for argument in self.arguments if argument.startswith("--")]
        assert len({name for name, _, _ in given}) == len(given) or "add" in self.words, f"a flag twice: {self}"
        return {name: value if equals else True for name, equals, value in given}


@dataclass(frozen=True)
class Run:
    status: int
    calls: list[Call]
    secrets: list[str]
    node_configs: list[str]
    project: str
    said: str

    def made(self, words: str) -> list[Call]:
        """The calls that begin with these words."""
        return [call for call in self.calls if call.words.startswith(words)]

    def one(self, words: str) -> Call:
        (call,) = self.made(words)
        return call


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """Runs a script; `found`: whether looking for a thing finds it. `listed`: what list commands print;
    `project`: what is written where the script says PROJECT_ID."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("gcloud", "kubectl"):
        (programs / name).write_text(PRETENDER)
        (programs / name).chmod(0o755)

    def run_script(
        script: str,
        found: bool = False,
        listed: str = "one",
        list_status: int = 0,
        other_pools: str = "",
        stdin: str = "",
        project: str = "a-project",
        **environment: str,
    ) -> Run:
        log = tmp_path / "calls"
        for file in tmp_path.glob("calls*"):
            file.unlink()
        finished = subprocess.run(
            ["bash", "-c", script.replace("PROJECT_ID=PROJECT_ID\n", f"PROJECT_ID={project}\n")],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={
                "PATH": f"{programs}:{os.environ['PATH']}",
                "CALLS": str(log),
                "FOUND": "0" if found else "1",
                "LISTED": listed,
                "LIST_STATUS": str(list_status),
                "OTHER_POOLS": other_pools,
                "OPERATOR_MARKS": "string/object",
                **environment,
            },
        )
        return Run(
            finished.returncode,
            _calls(_fields(log)),
            _fields(log.with_name("calls.secrets")),
            _fields(log.with_name("calls.node-configs")),
            "".join(_fields(log.with_name("calls.project"))),
            finished.stderr,
        )

    return run_script


def _fields(file: Path) -> list[str]:
    return file.read_text().split("\0")[:-1] if file.exists() else []


def _calls(fields: list[str]) -> list[Call]:
    calls = []
    while fields:
        count, program, *rest = fields
        calls.append(Call(program, tuple(rest[: int(count)])))
        fields = rest[int(count) :]
    return calls
