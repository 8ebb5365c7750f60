"""Ctrl-C while --recreate deletes: the command says how far it came, and ends as one that was interrupted."""

from typing import Any

import pytest

from kuberay.cluster import Interrupted, apply
from tests.kuberay.cluster.night import Manifest, service


class Deleting:
    """A cluster that has the object already, and in which somebody presses Ctrl-C as it is deleted."""

    def get(self, manifest: Manifest) -> Manifest:
        fields = {"managedFields": [{"manager": "podslice"}]}
        return manifest | {"metadata": manifest["metadata"] | fields}

    def apply(self, manifest: Manifest, dry_run: bool = False, force: bool = False) -> Manifest:
        assert dry_run
        return manifest

    def delete(self, live: Manifest) -> bool:
        raise KeyboardInterrupt


def test_an_interrupted_deletion_is_an_interrupt() -> None:
    cluster: Any = Deleting()
    with pytest.raises(Interrupted) as caught:
        apply(cluster, [service()], recreate=True)
    assert "Not deleted: RayService llama" in str(caught.value)
    done = "In progress, possibly done: deletion of the existing workloads. Not done: RayService llama"
    assert done in str(caught.value)
