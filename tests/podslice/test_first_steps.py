"""What newcomers type: a model by itself, options as other servers have them, a proxy in the environment, no extra."""

import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from kuberay import Refusal
from podslice import commands, machine
from podslice.served import Served, Serving, read
from podslice.supervisor import _answers
from ray_configs.cluster.release import PODSLICE_VERSION
from ray_configs.llm import LLMConfig
from ray_configs.loading import ConfigError
from ray_configs.stable_diffusion import StableDiffusionConfig
from tests.http_servers import StandInHandler, StandInServer

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (["Qwen/Qwen3-8B"], {"model": "Qwen/Qwen3-8B"}),
        (["./folder"], {"model": "./folder"}),
        (["gs://bucket/model", "max_batch_size=8"], {"model": "gs://bucket/model", "max_batch_size": 8}),
        (["--model", "Qwen/Qwen3-8B", "--max-model-len=4096"], {"model": "Qwen/Qwen3-8B", "max_model_len": 4096}),
        (["--tokenizer-info", "--model=a/b"], {"model": "a/b", "tokenizer_info": True}),
        (["a/b", "--served-model-name", "c"], {"model": "a/b", "model_id": "c"}),
    ],
)
def test_a_model_may_be_given_as_other_servers_take_it(arguments: list[str], fields: dict[str, Any]) -> None:
    (app,) = read("llm", arguments, None).applications
    assert app.config == LLMConfig(**fields)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--modle", "x"], "did you mean --model"),
        (["--max-model-length", "4"], "did you mean --max-model-len"),
        (["--quantise-everything"], "--fields"),
        (["a/b", "c/d"], "one model or one config"),
        (["a/b", "model=c/d"], "give one model"),
        (["no.such.module"], "there is no module"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_right(arguments: list[str], said: str) -> None:
    with pytest.raises((Refusal, ConfigError), match=re.escape(said)):
        read("llm", arguments, None)


def test_an_address_to_listen_on() -> None:
    everywhere = read("llm", ["a/b", "--host=0.0.0.0"], 8001)
    assert everywhere.http == {"host": "0.0.0.0", "port": 8001}
    assert everywhere.applications[0].url(8001) == "http://localhost:8001"
    one = read("llm", ["--host=192.0.2.7"], 8001)
    assert one.applications[0].url(8001) == "http://192.0.2.7:8001"
    assert read("llm", ["--host=2001:db8::7"], 1).applications[0].url(1) == "http://[2001:db8::7]:1"
    assert read("llm", ["ray_configs.catalog.local", "--host=127.0.0.1"], None).http["host"] == "127.0.0.1"


def test_version_help_and_fields() -> None:
    def said(*words: str) -> str:
        done = CliRunner().invoke(commands.app, words)
        assert done.exit_code == 0, done.output
        return done.stdout

    assert said("--version") == f"podslice {PODSLICE_VERSION}\n"
    assert said("-h") == said("--help") and "--fields" in said("-h")
    assert "--fields" in said("serve", "-h")
    for command, kind in (("serve", LLMConfig), ("serve-images", StableDiffusionConfig)):
        listed = re.findall(r"^(\w+)  \[", said(command, "--fields"), re.MULTILINE)
        assert sorted(listed) == sorted(kind.model_fields) and listed[0] == "model"


def test_the_command_to_copy_has_the_key_where_only_its_owner_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(terminal: bool, *arguments: str) -> str:
        monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
        (app,) = read("llm", arguments, None).applications
        return app.first_command(8000)

    assert "Authorization" not in first(True)
    assert "'Authorization: Bearer sesame'" in first(True, "api_keys=alice=sesame,other")
    assert "Bearer YOUR_KEY" in first(False, "api_keys=alice=sesame"), "a log may be read by others"
    monkeypatch.setenv("PODSLICE_API_KEYS", "sesame,bob=other")
    assert "'Authorization: Bearer sesame'" in first(True)


@pytest.fixture
def counted() -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything with 200, and what it was asked."""
    asked: list[str] = []

    class Counting(StandInHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer()

    with StandInServer(Counting) as server:
        yield server.url, asked


def test_a_server_asks_itself_and_no_proxy(counted: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: a proxy that notes what it is asked."""
    url, asked = counted
    nowhere = "http://127.0.0.1:9"
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, nowhere)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert _answers(f"{url}/v1/models")
    assert asked == ["/v1/models"], "a request through a proxy has the whole URL"


def refusal(config: LLMConfig | StableDiffusionConfig) -> str:
    with pytest.raises(Refusal) as raised:
        machine.refuse_impossible(Serving((Served("default", config, "/"),), {"host": "127.0.0.1", "port": 1}))
    return str(raised.value)


def test_pictures_without_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name == "PIL" else object())
    said = refusal(StableDiffusionConfig.demo())
    assert "needs Pillow" in said and "make serve-sd" in said and "torch" not in said.partition("which")[0]


@pytest.mark.parametrize(
    ("slice", "chips", "said"),
    [("v5e:4x8", 0, "8 hosts"), ("v5e:2x2", 0, "has none"), ("v5e:2x4:8t", 4, "has 4 of them"), ("v5e:2x2", 4, None)],
)
def test_a_slice_that_this_machine_does_not_have(
    slice: str, chips: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: Ray's own count of chips, which its replicas would wait for."""
    from ray._private.accelerators.tpu import TPUAcceleratorManager

    monkeypatch.delenv("RAY_OVERRIDE_RESOURCES", raising=False)
    monkeypatch.setattr(TPUAcceleratorManager, "get_current_node_num_accelerators", staticmethod(lambda: chips))
    if said:
        assert said in (text := refusal(LLMConfig(slice=slice))) and "leave slice out" in text
    else:
        serving = Serving((Served("default", LLMConfig(slice=slice), "/"),), {"host": "127.0.0.1", "port": 1})
        machine.refuse_impossible(serving)


FAKE = """#!/bin/bash
echo "$@" >>"$CALLS"
case "$*" in
  "-c "*) exit 0 ;;
  "-m venv --clear "*) mkdir -p .venv/bin; if [ "$VENV_WORKS" = yes ]; then cp "$0" .venv/bin/python; else exit 1; fi ;;
  "-m pip --version" | "-m ensurepip") [ "$PIP_WORKS" = yes ] ;;
esac
"""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `make whole-venv` with a Python that makes, or does not make, virtual environments."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "python").write_text(FAKE)
    (tmp_path / "python").chmod(0o755)

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "whole-venv", f"PYTHON={tmp_path}/python"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "CALLS": str(tmp_path / "calls"), **environment},
        )

    return run


def test_an_environment_that_was_interrupted_is_made_anew(make: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    broken = tmp_path / ".venv/bin/python"
    broken.write_text("#!/bin/false\n")
    broken.chmod(0o755)
    done = make(VENV_WORKS="yes", PIP_WORKS="yes")
    assert done.returncode == 0 and "not whole: making it anew" in done.stdout
    (tmp_path / "calls").unlink()
    again = make(VENV_WORKS="yes", PIP_WORKS="yes")
    assert again.returncode == 0 and "venv" not in (tmp_path / "calls").read_text(), "a whole one stays"


@pytest.mark.skipif(shutil.which("flock") is None, reason="util-linux has it")
def test_an_environment_that_another_make_is_about_to_make_is_waited_for(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    with subprocess.Popen(["flock", tmp_path, "cat"], stdin=subprocess.PIPE) as other:
        assert other.stdin is not None
        while subprocess.run(["flock", "-n", tmp_path, "true"]).returncode == 0:
            time.sleep(0.02)
        threading.Timer(1, other.stdin.close).start()
        done = make(VENV_WORKS="yes", PIP_WORKS="yes")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == [
        "== another make installs in this folder: waiting for it",
        "== creating .venv",
    ]


@pytest.mark.parametrize(("venv", "pip"), [("no", "no"), ("yes", "no")])
def test_a_python_without_pip_is_named_and_leaves_nothing(
    make: Callable[..., Any], tmp_path: Path, venv: str, pip: str
) -> None:
    done = make(VENV_WORKS=venv, PIP_WORKS=pip)
    assert done.returncode != 0 and "python3-venv" in done.stdout
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("target", ["serve", "serve-sd"])
def test_make_passes_its_variables_on(target: str) -> None:
    """Oracles: what make would run, and how the command line reads it."""
    asked = ("PORT=8123", "HOST=127.0.0.1", "MODEL=Qwen/Qwen3-0.6B", "ARGS=max_batch_size=8")
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of `make test`
    planned = subprocess.run(
        ["make", "-n", target, *asked], cwd=ROOT, env=outside, check=True, capture_output=True, text=True
    )
    line = planned.stdout.rstrip().splitlines()[-1]
    name, *words = shlex.split(line.partition("-m podslice ")[2])
    command = typer.main.get_command(commands.app).commands[name]  # type: ignore[attr-defined]
    given = command.make_context(name, words).params
    assert (given["port"], given["host"]) == (8123, "127.0.0.1")
    assert "Qwen/Qwen3-0.6B" in str(given) and "max_batch_size=8" in str(given)
