"""Runs the autoscaler's process beside the head, and hands on what it asks for."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kuberay.local import ServiceFailed
from kuberay.local.autoscaling.objects import LocalPod, ObjectFiles, WantedSlices
from kuberay.local.raylet import Raylet

ATTEMPTS = 3


class RayAutoscaler:
    """As KubeRay's container in the head's Pod: it starts with each head, and anew when it ends."""

    def __init__(self, folder: Path, ray_cluster: Mapping[str, Any]):
        """
        Args:
            folder: a new one, for its two objects.
            ray_cluster: the RayCluster.
        """
        self._files = ObjectFiles(folder, ray_cluster)
        self._shown: list[LocalPod] = []
        self._head: Raylet | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def tick(self, head: Raylet, pods: Sequence[LocalPod]) -> WantedSlices:
        """Show it the Pods. Returns what it asks for now. Raises ServiceFailed if it ends again and again."""
        if pods != self._shown:
            self._files.show(pods)
            self._shown = list(pods)
        if self._head is not head:
            self.stop()
            self._head, self._failures = head, 0
        elif self._process is not None and self._process.poll() is not None:
            self._failures += 1
            if self._failures == ATTEMPTS:
                raise ServiceFailed(f"Ray's autoscaler ended {ATTEMPTS} times:\n{head.last_words()}")
            self._process = None
        if self._process is None and head.up:
            files = str(self._files.ray_cluster), str(self._files.pods)
            # It ends with this program, whose end of the pipe is closed then.
            self._process = head.run("apps.serving.machines.autoscaler", *files, stdin=subprocess.PIPE)
        return self._files.wanted()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
