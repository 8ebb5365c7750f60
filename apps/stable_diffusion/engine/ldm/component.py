"""A component that is not in a checkpoint's folder, but in one of its own, or in a single file."""

from collections.abc import Mapping

import numpy as np

from apps.arrays.model_folder import ModelFolder, TensorEntry


class ComponentFile(ModelFolder):
    """A file of weights as a `ComponentSource`. Who opens it sets its tensors, by diffusers' names.

    Raises:
        CheckpointError: there is no such folder.
    """

    entries: Mapping[str, TensorEntry]

    def __init__(self, folder: str, file: str) -> None:
        super().__init__(folder)
        self.name = file

    def tensors(self, component: str) -> dict[str, TensorEntry]:
        """See `Checkpoint.tensors`."""
        return dict(self.entries)

    def where(self, component: str) -> str:
        """See `Checkpoint.where`."""
        return f"{self.location}/{self.name}"

    def read(self, entry: TensorEntry) -> np.ndarray:
        """See `Checkpoint.read`."""
        return self.array(entry.file, entry.start, entry.stop, entry.dtype, entry.shape)
