"""Where a file in safetensors is that a config names: local, at a URL, or on the hub."""

from collections.abc import Sequence
from pathlib import Path

from apps.arrays.model_folder import CheckpointError, from_hub

PICKLES = (".ckpt", ".bin", ".pt", ".pth")


def located(location: str, wanted: Sequence[str]) -> tuple[str, str | None]:
    """The folder, and the file's name in it; None: the location is a folder.

    Args:
        location: a folder or file, an fsspec URL, or on the hub OWNER/NAME or OWNER/NAME/FILE.
        wanted: the files that a repository of the hub is asked for, if none is named.

    Raises:
        CheckpointError: it is a pickle, or is not there.
    """
    if location.endswith(PICKLES):
        raise CheckpointError(f"{location} is a pickle, which is not read: save it as safetensors")
    is_file, path = location.endswith(".safetensors"), Path(location).expanduser()
    if "://" in location or path.exists():
        whole = location.rstrip("/") if "://" in location else str(path.resolve())
        folder, _, name = whole.rpartition("/") if is_file else (whole, "", None)
        return folder, name
    repository, _, name = location.rpartition("/") if is_file else (location, "", None)
    if location.startswith(("/", ".", "~")) or repository.count("/") != 1:
        raise CheckpointError(f"{location}: no such file; on the hub, name it OWNER/NAME or OWNER/NAME/FILE")
    return from_hub(repository, [name] if name else wanted), name
