"""Config of a cell: an admin that publishes models at run time onto slices that it owns."""

from typing import ClassVar

from ray_configs.base import Name
from ray_configs.replicas import AppConfig


class CellConfig(AppConfig):
    """A cell, as Saxml has them: models `/sax/NAME/...` are published, updated and unpublished while it runs.

    `min_replicas` and `max_replicas` are the slices that it holds for what will be published.
    """

    import_path: ClassVar[str] = "apps.cell:build"
    image_name: ClassVar[str] = "llm"
    default_name: ClassVar[str] = "cell"

    name: Name = "test"
    """The cell's name: it serves /sax/NAME."""
    state_uri: str = "~/.local/state/podslice/cell"
    """Folder or gs:// path that keeps what is published across restarts."""
