"""`python -m kuberay` against the real API server, in a namespace of the test's own."""

import sys
from pathlib import Path

import pytest

from kuberay import commandline
from tests.kubernetes.cluster.served import Manifest, RunCommand, write
from tests.kubernetes.clusters import Cluster


@pytest.fixture
def run(control_plane: Cluster, namespace: str, tmp_path: Path, monkeypatch, capsys) -> RunCommand:
    """Runs a command on objects; returns (status, what it printed, what it complained of)."""

    def command(name: str, objects: list[Manifest], *options: str, kubeconfig: Path | None = None):
        path = write(tmp_path / "objects.yaml", objects)
        target = ["--kubeconfig", str(kubeconfig or control_plane.kubeconfig), "--namespace", namespace]
        monkeypatch.setattr(sys, "argv", ["kuberay", name, str(path), *options, *target])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            commandline.main()
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    return command
