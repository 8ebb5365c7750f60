"""apply, diff, status and delete as a person types them, on the rendered catalog, against the API server double."""

import sys
from pathlib import Path

import pytest
from api_server import ApiServer

from kuberay import commandline

LLAMA = "ray_configs.catalog.llama3_8b_v5e"


@pytest.fixture
def run(server: ApiServer, tmp_path: Path, monkeypatch, capsys):
    """Runs a command against the double; returns (status, stdout, stderr)."""
    kubeconfig = server.kubeconfig(tmp_path / "config")

    def command(name: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kuberay", name, *arguments, "--kubeconfig", str(kubeconfig)])
        with pytest.raises(SystemExit) as stop:
            commandline.main()
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    return command


def test_a_services_life(run):
    status, out, _ = run("diff", LLAMA, "--project", "p")
    assert status == 1 and "+kind: RayService" in out
    status, out, _ = run("apply", LLAMA, "--project", "p", "--dry-run=server")
    assert status == 0 and "RayService llama3-8b: created (dry run)" in out
    status, out, _ = run("apply", LLAMA, "--project", "p")
    assert status == 0 and "RayService llama3-8b: created\n" in out and "PodMonitoring llama3-8b: created\n" in out
    status, out, _ = run("apply", LLAMA, "--project", "p")
    assert status == 0 and out.count(": unchanged") == 2
    assert run("diff", LLAMA, "--project", "p")[0] == 0
    status, out, _ = run("status", LLAMA)
    assert status == 1 and out.startswith("llama3-8b")
    status, out, _ = run("delete", LLAMA)
    assert status == 0 and "RayService llama3-8b" in out
    status, out, _ = run("status", LLAMA)
    assert status == 1 and "not" in out


def test_a_changed_manifest_shows_what_changes(run, tmp_path):
    run("apply", LLAMA, "--project", "p")
    committed = Path(commandline.__file__).parent / "manifests" / "llama3_8b_v5e.yaml"
    changed = tmp_path / "changed.yaml"
    changed.write_text(committed.read_text().replace("PROJECT_ID", "p").replace("batch_size: 64", "batch_size: 32"))
    status, out, _ = run("diff", str(changed))
    lines = [line.split() for line in out.splitlines() if line[:1] in "+-" and "max_batch_size" in line]
    assert status == 1 and sorted(lines) == [["+", "max_batch_size:", "32"], ["-", "max_batch_size:", "64"]]
    status, out, _ = run("apply", str(changed))
    assert status == 0 and "RayService llama3-8b: configured" in out


def test_a_refusal_of_the_cluster_is_one_clear_error(run, server):
    server.trouble("unauthorized")
    status, _out, err = run("apply", LLAMA, "--project", "p")
    assert status == 2 and "Traceback" not in err and "gcloud container clusters get-credentials" in err


def test_waiting_that_ends_without_success(run):
    run("apply", LLAMA, "--project", "p")
    status, _, err = run("status", LLAMA, "--wait", "--timeout", "0.5")
    assert status == 2 and "Not ready after 0.5 s" in err
