"""Runs the kubelet as a separate process beside the tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.kubernetes.harness.kubelet.machine import ROOT

STOP_S = 60


class KubeletProcess:
    """Kubelet and network of one control plane; at most one per network namespace.

    with KubeletProcess(plane.kubeconfig, folder):
        ...
    """

    def __init__(self, kubeconfig: Path, folder: Path):
        """`folder`: receives the Pods' logs and the kubelet's own, kubelet.log."""
        self._kubeconfig, self.folder = kubeconfig, folder

    def __enter__(self) -> "KubeletProcess":
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "kubelet.log"
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.main", str(self._kubeconfig), str(self.folder)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        if self._process.stdout.readline() != b"up\n":
            self._process.wait()
            raise RuntimeError(f"the kubelet ended at once; {log} ends so:\n{log.read_text()[-1500:]}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
