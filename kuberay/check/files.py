"""Files that hold no checkable object: empty ones, unreadable ones, and the parts of a kustomization."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kuberay.check.findings import Location
from kuberay.check.reading import UnreadableYaml, read_yaml
from kuberay.check.rules import Problem, error, note, rule

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_WHOLE = ("resources", "bases", "components", "crds")
"""Fields of a kustomization that name files of complete objects."""
_LEVELS = 3
"""How many folders to search for a kustomization that names a file: its own folder and those above."""


@dataclass(frozen=True)
class Skipped:
    """A file that is not checked: only kustomize reads it, or it holds parts of objects."""

    file: Path
    why: str
    folder: Path
    """The folder on which to run `kubectl kustomize`."""


@dataclass(frozen=True)
class Empty:
    """One or more files without an object."""

    source: str


def skipped(file: Path) -> Skipped | None:
    """Returns why to skip a file; None if it should be checked."""
    if file.name in NAMES:
        return Skipped(file, "is read by kustomize and is not an object of the API server", file.parent)
    for folder in list(file.resolve().parents)[:_LEVELS]:
        for kustomization in (folder / name for name in NAMES):
            if kustomization.is_file() and file.resolve() in set(_parts(kustomization)):
                why = f"holds no complete objects: {kustomization.name} names it as a part of others"
                return Skipped(file, why, folder)
    return None


@rule(Skipped, "kustomize", "kubectl kustomize")
def kustomize(skipped: Skipped) -> Iterator[Problem]:
    """Patches and settings of a kustomization are not checked; the objects built from them can be."""
    name = str(skipped.file)
    instead = f"check the result: kubectl kustomize {skipped.folder} | python -m kuberay check -"
    yield note(Location(name, name), f"skipped: it {skipped.why}", instead)


@rule(Empty, "no-object", "kubectl apply")
def no_object(empty: Empty) -> Iterator[Problem]:
    """A file contains an object. A command that failed often leaves an empty file."""
    why = "holds no object: nothing was checked, and nothing would be applied"
    instead = "look at the command that wrote it; it may have failed"
    yield error(Location(empty.source, empty.source), why, instead)


@rule(UnreadableYaml, "unreadable", "kubectl: its YAML parser")
def unreadable(refusal: UnreadableYaml) -> Iterator[Problem]:
    """A file is valid YAML or JSON, of a size that the API server would accept."""
    yield error(Location(refusal.file, refusal.file, refusal.line), refusal.why, refusal.instead)


def _parts(kustomization: Path) -> Iterator[Path]:
    """The files that it names, except those of complete objects."""
    try:
        documents = read_yaml(kustomization)
    except UnreadableYaml:
        return
    for key, value in (field for document in documents for field in document.items()):
        for text in _texts(value) if key not in _WHOLE else ():
            if "\n" not in text:  # a patch can also be inline
                yield (kustomization.parent / text.rpartition("=")[2]).resolve()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(child)
