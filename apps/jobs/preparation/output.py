"""The output of a preparation: a folder or a URL.

Files appear whole or not at all: on a disk they are written under another name, synced and renamed; in a bucket objects
are atomic anyway. `preparing.json` records what is being prepared and which files are done, with their checksums; a
file that it does not list is written again. When all are done, the manifest is written and `preparing.json` deleted.

On one machine a lock refuses a second preparation of the same folder. A bucket needs none: two preparations of the same
model write the same objects, byte for byte, and one of another model is refused because of `preparing.json`.
"""

import errno
import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, Literal

import fsspec
from pydantic import ValidationError

from apps.arrays.model_folder import MOST_LISTED
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.prepared import (
    FORMAT,
    UNFINISHED,
    VERSION,
    PreparationRequest,
    PreparedManifest,
    StoredFile,
)
from apps.serving.files import LOCK, PARTIAL, is_local, locked, sync_folder, writing
from apps.serving.progress import bar

PIECE = 16 * 2**20


class PreparationRefused(ValueError):
    """An argument of the command is wrong; the message names it."""


class Progress(PreparationRequest):
    """Contents of `preparing.json`."""

    format: Literal["podslice-prepared"] = FORMAT
    version: int = VERSION
    done: dict[str, StoredFile]


class Sink:
    """A file that is being written."""

    def __init__(self, file: IO[bytes]):
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class PreparationOutput:
    """Where a prepared model goes: a local folder, or any fsspec URL."""

    def __init__(self, location: str):
        self.location = location if "://" in location else str(Path(location).expanduser().resolve())
        self._fs, self._root = fsspec.core.url_to_fs(self.location)
        self._local = is_local(self._fs)

    def is_at(self, location: str) -> bool:
        return self.location.rstrip("/") == location.rstrip("/")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, and lock it against others on this machine. Raises Busy."""
        with locked(self._root) if self._local else nullcontext():
            yield

    # -- reading --------------------------------------------------------------------------------------------------

    def begin(self, request: PreparationRequest, manifest: str) -> dict[str, StoredFile]:
        """Start or resume a preparation; returns the files that earlier runs of it have recorded.

        Raises:
            PreparationRefused: the folder holds something else.
        """
        there = self._names()
        for name, kind in ((manifest, PreparedManifest), (UNFINISHED, Progress)):
            if name not in there:
                continue
            found = self._read(name, kind)
            if not request.same_as(found):
                raise PreparationRefused(
                    f"OUTPUT: {self.location} holds {_told(found)}, not {_told(request)}; {_ADVICE}"
                )
            return found.files if isinstance(found, PreparedManifest) else found.done
        if there:
            raise PreparationRefused(f"OUTPUT: {self.location} is not empty ({sorted(there)[0]} is there); {_ADVICE}")
        self.record(request, {})
        return {}

    def _names(self) -> set[str]:
        if not self._fs.exists(self._root):
            return set()
        names = {Path(path).name for path in self._fs.ls(self._root, detail=False)}
        return {name for name in names if not name.endswith((PARTIAL, LOCK))}

    def _read(self, name: str, kind: type[PreparedManifest] | type[Progress]) -> PreparedManifest | Progress:
        content: Any = Checkpoint(self.location, weights=False).read_json(name, MOST_LISTED)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise PreparationRefused(f"OUTPUT: {self.location}/{name} was not written by this command; {_ADVICE}")
        if kind is PreparedManifest:
            return PreparedManifest.parse(content, self.location)
        try:
            return Progress.model_validate(content)
        except ValidationError as error:
            raise PreparationRefused(
                f"OUTPUT: {self.location}/{name} is damaged or of another version of Podslice; {_ADVICE}"
            ) from error

    def whole(self, files: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
        """Those of the files that exist with the recorded size and checksum."""
        if not files:
            return {}
        found = {}
        with bar(f"checking {self.location}", len(files)) as advance:
            for name, stored in files.items():
                if self._stored(name, stored.size) == stored:
                    found[name] = stored
                advance()
        return found

    def _stored(self, name: str, size: int) -> StoredFile | None:
        path = f"{self._root}/{name}"
        if not self._fs.isfile(path) or self._fs.size(path) != size:
            return None
        digest = hashlib.sha256()
        with self._fs.open(path, "rb") as file:
            while data := file.read(PIECE):
                digest.update(data)
        return StoredFile(size=size, sha256=digest.hexdigest())

    def need_space(self, total: int, largest: int) -> None:
        """Raise OSError if this many more bytes do not fit. Only a disk tells in advance."""
        if not self._local:
            return
        free = shutil.disk_usage(self._root).free
        if free < total:
            said = f"{total / 1e9:.1f} GB are still to be written, and {free / 1e9:.1f} GB are free"
            raise OSError(errno.ENOSPC, f"No space left on device: {said}", self.location)

    # -- writing --------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, name: str) -> Iterator[Sink]:
        """Write a file, which appears only if the block succeeds."""
        with writing(self._fs, f"{self._root}/{name}", private=False) as file:
            yield Sink(file)

    def record(self, request: PreparationRequest, done: Mapping[str, StoredFile]) -> None:
        """Record these files as written."""
        progress = Progress(**request.model_dump(), done=dict(done))
        self._write(UNFINISHED, (progress.model_dump_json(indent=1) + "\n").encode())

    def finish(self, name: str, manifest: bytes) -> None:
        """Write the manifest, which completes the output."""
        self._write(name, manifest)
        if self._fs.exists(f"{self._root}/{UNFINISHED}"):
            self._fs.rm_file(f"{self._root}/{UNFINISHED}")
        if self._local:
            sync_folder(f"{self._root}/{UNFINISHED}")

    def _write(self, name: str, content: bytes) -> None:
        with self.writing(name) as sink:
            sink.write(content)


_ADVICE = "choose another folder, or delete it"


def _told(request: PreparationRequest) -> str:
    quantized = "" if request.quantize_weights == "none" else f", weights {request.quantize_weights}"
    layout = f"tensor_parallel {request.tensor_parallel}"
    return f"{request.source} ({request.dtype}{quantized}, {layout}, digest {request.source_digest[:8]})"
