"""Compiled programs as files: a set for each machine and config that they were made for, sealed with a key.

A set is a folder, `SET/manifest.json` and a file a program. To load a program is to run it, so the manifest carries a
keyed hash (HMAC-SHA256), and the SHA-256 of each file: nothing is loaded that was not written with the key. The key is
`PODSLICE_PROGRAMS_KEY` in the environment of whoever writes and whoever loads, from a Secret for one.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import fsspec
from pydantic import ValidationError

from apps.arrays.stored_programs.seal import KEY_VARIABLE, Unusable
from apps.serving.files import is_local, locked, writing
from ray_configs.base import Config

MANIFEST, TRIED = "manifest.json", "tried.json"
MOST_LISTED = 2**24
"""Bytes of a manifest that are read at most."""
NAME = 16
"""Characters of a set's name."""

_tried_here: set[bytes] = set()


class StoredProgram(Config):
    """A program in a file of its set."""

    name: str
    """Its key in the engine's list, in words."""
    digest: str
    """See `fingerprint.program`."""
    file: str
    size: int
    sha256: str
    devices: tuple[int, ...]
    """Ids of those that it runs on, in the order of its mesh."""
    targets: tuple[str, ...] = ()
    """Custom calls whose kernels must be registered before it is loaded."""
    compile_s: float
    """Seconds that compiling it took."""


class ProgramManifest(Config):
    """What a set holds, and what for."""

    format: Literal["podslice-programs"] = "podslice-programs"
    version: Literal[1] = 1
    made_for: dict[str, str]
    """What all of its programs hang on, by name: see `fingerprint.machine`, and the engine's own."""
    platform: str
    slice: str | None
    pages: int
    """Of the KV cache that the programs were made for."""
    programs: tuple[StoredProgram, ...] = ()

    @property
    def name(self) -> str:
        """The set's: another one for each machine, config and version."""
        return hashlib.sha256(_canonical(self.made_for)).hexdigest()[:NAME]


class ProgramFolder:
    """The sets below a local folder or an fsspec URL.

    Args:
        key: what is sealed with it is believed.
    """

    def __init__(self, location: str, key: bytes):
        self.location, self._key = location, key
        self._fs, self._root = fsspec.core.url_to_fs(os.path.expanduser(location))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others on this machine from writing it, if it is a local folder. Raises Busy."""
        with locked(self._root) if is_local(self._fs) else nullcontext():
            yield

    def sets(self) -> list[str]:
        """Names of the sets, sorted. Raises the storage's own errors, but not where there is no folder."""
        try:
            found = self._fs.ls(self._root, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found if len(path.rpartition("/")[2]) == NAME)

    def manifest(self, name: str) -> ProgramManifest:
        """A set's. Raises Unusable."""
        where = f"{self.location}/{name}/{MANIFEST}"
        try:
            return ProgramManifest.model_validate(self._unsealed(f"{name}/{MANIFEST}"))
        except ValidationError as error:
            raise Unusable(f"{where} is of another Podslice, or damaged: {error.errors()[0]['msg']}") from error
        except Unusable:
            raise
        except Exception as error:  # remote file systems raise their clients' own
            raise Unusable(f"{where} cannot be read: {error}") from error

    def manifests(self) -> tuple[list[ProgramManifest], list[str]]:
        """Those of the sets that can be used, and what is wrong with others, whose seal may be another key's."""
        found, wrong = list[ProgramManifest](), list[str]()
        for name in self.sets():
            try:
                found.append(self.manifest(name))
            except Unusable as error:
                wrong.append(str(error))
        return found, wrong

    def read(self, manifest: ProgramManifest, program: StoredProgram) -> bytes:
        """A program's file. Raises Unusable if it is not the one that the manifest lists."""
        path = f"{manifest.name}/{program.file}"
        try:
            content: bytes = self._fs.cat_file(f"{self._root}/{path}")
        except Exception as error:
            raise Unusable(f"{self.location}/{path} cannot be read: {error}") from error
        if hashlib.sha256(content).hexdigest() != program.sha256:
            raise Unusable(f"{self.location}/{path} is cut short, or changed")
        return content

    def is_whole(self, manifest: ProgramManifest, program: StoredProgram) -> bool:
        try:
            self.read(manifest, program)
        except Unusable:
            return False
        return True

    def write(self, manifest: ProgramManifest, file: str, content: bytes, alone: bool = True) -> None:
        """Write a file of a set, whole or not at all. See `writing` for `alone`."""
        with writing(self._fs, f"{self._root}/{manifest.name}/{file}", alone, private=False) as to:
            to.write(content)

    def write_manifest(self, manifest: ProgramManifest) -> None:
        self.write(manifest, MANIFEST, self._sealed(manifest.model_dump(mode="json")))

    # -- the first load ---------------------------------------------------------------------------------------------

    def is_tried(self, manifest: ProgramManifest) -> bool:
        """Whether the set, as it is, has been loaded and run on its machine: see `trial`."""
        trial = self._trial(manifest)
        if _canonical(trial) in _tried_here:
            return True
        try:
            return bool(self._unsealed(f"{manifest.name}/{TRIED}") == trial)
        except Exception:  # it is not there, or cannot be read
            return False

    def note_tried(self, manifest: ProgramManifest) -> None:
        """For this process alone: the folder may be one that cannot be written."""
        _tried_here.add(_canonical(self._trial(manifest)))

    def mark_tried(self, manifest: ProgramManifest) -> None:
        """For all processes, from now on. All hosts of a slice may do it at once."""
        self.write(manifest, TRIED, self._sealed(self._trial(manifest)), alone=False)

    def _trial(self, manifest: ProgramManifest) -> dict[str, Any]:
        return {"set": manifest.name, "programs": sorted(program.sha256 for program in manifest.programs)}

    # -- seals ------------------------------------------------------------------------------------------------------

    def _sealed(self, content: Mapping[str, Any]) -> bytes:
        return json.dumps({**content, "seal": self._seal(content)}, indent=1).encode() + b"\n"

    def _seal(self, content: Mapping[str, Any]) -> str:
        return hmac.new(self._key, b"podslice programs\n" + _canonical(content), hashlib.sha256).hexdigest()

    def _unsealed(self, path: str) -> dict[str, Any]:
        where = f"{self.location}/{path}"
        try:
            content = json.loads(self._fs.cat_file(f"{self._root}/{path}", end=MOST_LISTED))
        except (ValueError, RecursionError) as error:
            raise Unusable(f"{where} is damaged: it is not JSON") from error
        if not isinstance(content, dict):
            raise Unusable(f"{where} is damaged: it is no JSON object")
        seal = str(content.pop("seal", ""))
        if not hmac.compare_digest(seal.encode(), self._seal(content).encode()):
            raise Unusable(f"{where} was not sealed with this {KEY_VARIABLE}: it was made with another, or changed")
        return content


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
