"""Files of a kustomization that are no objects: its patches, and settings of kustomize itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kuberay.check.findings import Finding
from kuberay.check.reading import UnreadableYaml, read_yaml

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_LEVELS = 3
"""Folders above a file in which a kustomization that names it is looked for, its own one counted."""


def left_out(file: Path) -> Finding | None:
    """Why a file is not checked: what it holds is no object, but part of one, or read by kustomize alone."""
    if file.name in NAMES:
        return _note(file, "is read by kustomize and is no object of the API server", file.parent)
    for folder in list(file.resolve().parents)[:_LEVELS]:
        for kustomization in (folder / name for name in NAMES):
            if kustomization.is_file() and file.resolve() in set(_parts(kustomization)):
                return _note(file, f"holds no whole objects: {kustomization.name} names it as a part of others", folder)
    return None


def _note(file: Path, why: str, folder: Path) -> Finding:
    instead = f"check the result: kubectl kustomize {folder} | python -m kuberay check -"
    return Finding("kustomize", "note", str(file), f"skipped: it {why}", instead, file=str(file))


def _parts(kustomization: Path) -> Iterator[Path]:
    try:
        documents = read_yaml(kustomization)
    except UnreadableYaml:
        return
    for document in documents:
        named = [*_items(document, "patchesStrategicMerge"), *_items(document, "configurations")]
        for key in ("patches", "patchesJson6902", "replacements"):
            named += [item.get("path") for item in _items(document, key) if isinstance(item, dict)]
        for key in ("configMapGenerator", "secretGenerator"):
            for item in _items(document, key):
                named += [str(file).rpartition("=")[2] for file in _items(item, "files")]
        for name in named:
            if isinstance(name, str) and "\n" not in name:  # a patch can be written in place too
                yield (kustomization.parent / name).resolve()


def _items(value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []
