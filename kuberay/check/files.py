"""Files as they are read: those that hold no object, and the parts of a kustomization, which are none either."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kuberay.check.findings import Location
from kuberay.check.reading import UnreadableYaml, read_yaml
from kuberay.check.rules import Problem, error, note, rule

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_WHOLE = ("resources", "bases", "components", "crds")
"""Fields that name files of whole objects."""
_LEVELS = 3
"""Folders above a file in which a kustomization that names it is looked for, its own one counted."""


@dataclass(frozen=True)
class Skipped:
    """A file that is not checked: kustomize alone reads it, or it holds parts of objects."""

    file: Path
    why: str
    folder: Path
    """Where kustomize makes whole objects of it."""


@dataclass(frozen=True)
class Empty:
    """A file, or several, without an object."""

    source: str


def skipped(file: Path) -> Skipped | None:
    """None: the file is to be checked."""
    if file.name in NAMES:
        return Skipped(file, "is read by kustomize and is no object of the API server", file.parent)
    for folder in list(file.resolve().parents)[:_LEVELS]:
        for kustomization in (folder / name for name in NAMES):
            if kustomization.is_file() and file.resolve() in set(_parts(kustomization)):
                why = f"holds no whole objects: {kustomization.name} names it as a part of others"
                return Skipped(file, why, folder)
    return None


@rule(Skipped, "kustomize", "kubectl kustomize")
def kustomize(skipped: Skipped) -> Iterator[Problem]:
    """Patches and settings of a kustomization are not checked; the objects that it makes of them can be."""
    name = str(skipped.file)
    instead = f"check the result: kubectl kustomize {skipped.folder} | python -m kuberay check -"
    yield note(Location(name, name), f"skipped: it {skipped.why}", instead)


@rule(Empty, "no-object", "kubectl apply")
def no_object(empty: Empty) -> Iterator[Problem]:
    """A file without an object is what a command that failed leaves behind."""
    why = "holds no object: nothing was checked, and nothing would be applied"
    instead = "look at what wrote it; a command that failed leaves such a file"
    yield error(Location(empty.source, empty.source), why, instead)


@rule(UnreadableYaml, "unreadable", "kubectl: its reader of YAML")
def unreadable(refusal: UnreadableYaml) -> Iterator[Problem]:
    """A file is YAML or JSON that can be read, of a size that the API server would take."""
    yield error(Location(refusal.file, refusal.file, refusal.line), refusal.why, refusal.instead)


def _parts(kustomization: Path) -> Iterator[Path]:
    """The files that it names otherwise than as whole objects."""
    try:
        documents = read_yaml(kustomization)
    except UnreadableYaml:
        return
    for key, value in (field for document in documents for field in document.items()):
        for text in _texts(value) if key not in _WHOLE else ():
            if "\n" not in text:  # a patch can be written in place too
                yield (kustomization.parent / text.rpartition("=")[2]).resolve()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(child)
