"""What `podslice serve` makes of its arguments, and what it refuses before anything starts."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ray._common.utils import get_ray_address_file

from kuberay import Refusal
from podslice.machine import logical_cpus
from podslice.own_folder import FOLDER, named, with_own_folder
from podslice.served import joins_a_cluster, read
from ray_configs.llm import ROUTERS, LLMConfig
from ray_configs.loading import ConfigError, assignments
from ray_configs.stable_diffusion import StableDiffusionConfig
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
ASKED = """-d '{"prompt": "How many days are in a week?", "max_tokens": 50}'"""
PICTURE = "curl -o picture.png 'localhost:8000{}/imagine?prompt=a+red+circle'"


@pytest.mark.parametrize(
    ("kind", "arguments", "commands"),
    [
        ("llm", (), {"podslice-demo": f"curl localhost:8000/generate {ASKED}"}),
        ("llm", ("model=a/b", "max_batch_size=2"), {"b": f"curl localhost:8000/generate {ASKED}"}),
        ("images", (), {"podslice-sd-demo": PICTURE.format("")}),
        ("images", ("model_id=shapes",), {"shapes": PICTURE.format("")}),
        (
            "llm",
            ("ray_configs.catalog.whole_graph",),
            {
                "Meta-Llama-3-8B": f"curl localhost:8000/generate {ASKED}",
                "sdxl-turbo": PICTURE.format("/pictures"),
                "/sax/test": "curl localhost:8000/cell/listall",
            },
        ),
    ],
)
def test_each_application_has_a_first_command(kind: str, arguments: tuple[str, ...], commands: dict[str, str]) -> None:
    serving = read(kind, arguments, None)
    assert {app.title: app.first_command(serving.port) for app in serving.applications} == commands


def test_fields_are_the_configs_own_and_a_config_brings_its_options() -> None:
    serving = read("llm", ["model=a/b", "max_batch_size=2"], 8001)
    assert serving.applications[0].config == LLMConfig(model="a/b", max_batch_size=2)
    assert serving.http == {"host": "127.0.0.1", "port": 8001}
    whole = read("llm", ["ray_configs.catalog.whole_graph"], 8001)
    assert whole.http == {"host": "0.0.0.0", "port": 8001}
    assert whole.logging == {"encoding": "JSON", "log_level": "INFO"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["max_batch_size=x"], r"LLMConfig.max_batch_size: Input should be a valid integer.* \(got 'x'\)"),
        (["ray_configs.catalog.local", "model=x"], "leave out the other arguments"),
        (["ray_configs.catalog.smoke_multi_host"], "only a service can be served"),
        (["no.such.module"], "there is no module"),
        (["kv_events=on"], "LLMConfig.kv_events: must be JSON such as"),
        (['kv_events={"endpoint": "udp://x"}'], "LLMConfig.kv_events.endpoint: must be tcp://ADDRESS:PORT"),
        (["adapters=sql"], "LLMConfig.adapters: must be JSON such as"),
        (["--max-model-lenn", "64"], "no option --max-model-lenn: did you mean --max-model-len"),
        (["--prot", "8001"], "no option --prot: did you mean --port"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises((Refusal, ConfigError), match=message):
        read("llm", arguments, None)


@pytest.mark.parametrize(
    ("kind", "field"), [("llm", "adapters"), ("stable_diffusion", "loras"), ("stable_diffusion", "controlnets")]
)
def test_files_by_name(kind: str, field: str) -> None:
    """As the docs of these fields write them."""
    config = {"llm": LLMConfig, "stable_diffusion": StableDiffusionConfig}[kind]
    changes = assignments([f'{field}={{"ink": "/files/ink"}}'], config)
    assert getattr(config(**changes), field) == {"ink": "/files/ink"}


@pytest.mark.slow
def test_what_cannot_start_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(*arguments: str, command: str = "serve") -> tuple[int, str]:
        whole = [sys.executable, "-m", "podslice", command, *arguments]
        done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stderr

    monkeypatch.delenv("MAKELEVEL", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve("--port", str(port)) == (
            2,
            f"podslice: port {port} cannot be used (Address already in use): choose another one, --port {port + 1}\n",
        )
        monkeypatch.setenv("MAKELEVEL", "1")  # as make sets it
        assert f"choose another one, make ... PORT={port + 1}\n" in serve("--port", str(port))[1]
        code, said = serve("--port", str(port), command="playground")
        assert code == 2 and f"port {port} cannot be used (Address already in use)" in said
    absent = tmp_path / "absent"
    assert serve(f"--port={free_port()}", f"model={absent}") == (2, f"podslice: {absent}: no such folder\n")
    file = f"{absent}.safetensors"
    assert serve(f"--port={free_port()}", f"model={file}") == (2, f"podslice: {file}: no such file\n")


def test_files_and_batches_have_a_folder_on_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    (app,) = with_own_folder(read("llm", ["batch_keep_days=7"], None)).applications
    assert isinstance(app.config, LLMConfig)
    assert (app.config.batches, app.config.batch_key_gib, app.config.batch_keep_days) == (FOLDER, 10, 7)
    assert Path(FOLDER).expanduser().is_dir() and Path(FOLDER).parent == Path(LLMConfig().compile_cache or "").parent
    assert FOLDER in (named(app) or "") and "7 days" in (named(app) or "")
    whole = with_own_folder(read("llm", ["ray_configs.catalog.whole_graph"], None))
    assert [getattr(app.config, "batches", None) for app in whole.applications] == [FOLDER, None, None]


@pytest.mark.parametrize(
    ("arguments", "address", "batches"),
    [
        (["batches=gs://b/x"], "local", "gs://b/x"),
        (["batches=off"], "local", None),
        ([], "10.0.0.1:6379", None),  # of several machines, which do not share it
    ],
)
def test_another_place_for_them(
    arguments: list[str], address: str, batches: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", address)
    (app,) = with_own_folder(read("llm", arguments, None)).applications
    assert isinstance(app.config, LLMConfig) and app.config.batches == batches and named(app) is None
    assert app.config.batch_keep_days is None


@pytest.mark.parametrize("name", ["RAY_TMPDIR", "TMPDIR"])
def test_a_cluster_that_ray_start_left_here_is_joined(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address is where Ray itself, which has the last word, looks for it."""
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv(name, str(tmp_path))
    assert not joins_a_cluster()
    left = Path(get_ray_address_file(None))
    left.parent.mkdir()
    left.write_text("127.0.0.1:6379")
    assert left.is_relative_to(tmp_path) and joins_a_cluster()


def test_a_ray_of_its_own_has_cpus_for_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the smallest machine: Ray would wait without end for a CPU that the other applications have."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert logical_cpus(read("llm", [], None)) == 2
    assert logical_cpus(read("llm", ["max_replicas=3"], None)) == 3 + ROUTERS
    whole = read("llm", ["ray_configs.catalog.local"], None)
    assert logical_cpus(whole) >= sum(app.config.num_cpus for app in whole.applications)


def test_a_home_that_cannot_be_written_keeps_nobody_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    serving = read("llm", [], None)
    assert with_own_folder(serving) == serving
