"""Files in the storage: content and metadata. A file exists once its metadata does, which is written last."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import IO, Any

from apps.llm.batch_api.files.storage import READ_BYTES, Found, Storage, age_s, created_s, is_broken, is_id, typed
from apps.serving.files import PARTIAL, writing
from apps.serving.ingress.dialects.openai_errors import OpenAIError

ABOUT, CONTENT = ".json", ".jsonl"
LEFTOVER_S = 24 * 3600
"""Content older than this without metadata is what a killed upload left."""
ARRIVING_S = 600
"""An unfinished file on a disk that has not grown for so long is a killed upload's."""

File = dict[str, Any]
"""A file object of OpenAI's API."""
KINDS = {"id": str, "bytes": int, "created_at": int, "filename": str, "purpose": str}


class Files:
    """The files of all owners. Blocking."""

    def __init__(self, storage: Storage):
        self._storage = storage

    def writing(self, owner: str, id_: str) -> AbstractContextManager[IO[bytes]]:
        """Opens the content of a new file for writing. The file does not exist until `add`."""
        return writing(self._storage.fs, self._path(owner, id_, CONTENT))

    def add(self, owner: str, id_: str, size: int, filename: str, purpose: str) -> File:
        """Makes the written content a file by writing its metadata."""
        about = {
            "id": id_,
            "object": "file",
            "bytes": size,
            "created_at": int(time.time()),
            "filename": filename,
            "purpose": purpose,
            "status": "processed",
        }
        try:
            self._storage.write(self._path(owner, id_, ABOUT), about)
        except BaseException:
            self._storage.remove(self._path(owner, id_, CONTENT))
            raise
        return about

    def get(self, owner: str, id_: str) -> File:
        """Raises OpenAIError if the owner has no such file."""
        (about,) = self.several(owner, [id_]) if is_id(id_) else [None]
        if about is None:
            raise OpenAIError(404, f"No such File object: {id_}", "id", "file_not_found")
        return about

    def newest_first(self, owner: str) -> list[str]:
        """Ids of all of the owner's files."""
        names = self._storage.names("keys", owner, "files")
        ids = (name.removesuffix(ABOUT) for name in reversed(names) if name.endswith(ABOUT))
        return [id_ for id_ in ids if is_id(id_)]

    def ids(self, owner: str) -> list[str]:
        """As `newest_first`; empty if what is there is not an owner's folder."""
        try:
            return self.newest_first(owner)
        except NotADirectoryError:
            return []

    def several(self, owner: str, ids: list[str]) -> list[File | None]:
        """The files with these ids; None for one that does not exist."""
        found = self._storage.read([self._path(owner, id_, ABOUT) for id_ in ids])
        return [self._seen(owner, id_, about) for id_, about in zip(ids, found)]

    def _seen(self, owner: str, id_: str, found: Found) -> File | None:
        """The file; with what its id and content tell if its metadata cannot be read."""
        about = typed(found, KINDS)
        if found is None or (KINDS.keys() <= about.keys() and about["id"] == id_):
            return found if found is None else about
        said = "The file's record is damaged: its name and purpose are lost. Its content can still be read."
        try:
            size = self.size(owner, id_) or 0
        except FileNotFoundError:
            size = 0
        known: File = {"id": id_, "object": "file", "bytes": size, "created_at": int(created_s(id_))}
        known |= {"filename": id_ + CONTENT, "purpose": "batch", "status": "error", "status_details": said}
        return known | {name: value for name, value in about.items() if name in ("filename", "purpose")}

    def size(self, owner: str, id_: str) -> int | None:
        """Bytes of the content; None if it cannot be read. Raises FileNotFoundError."""
        try:
            about = self._storage.fs.info(self._path(owner, id_, CONTENT))
        except OSError as error:
            if is_broken(error):
                return None
            raise
        return int(about["size"]) if about["type"] == "file" else None

    def checked(self, owner: str, id_: str) -> File:
        """The file, if its content is whole. Raises OpenAIError: there is no such file, or its content is damaged."""
        about = self.get(owner, id_)
        try:
            size = self.size(owner, id_)
        except FileNotFoundError:
            size = None
        if size != about["bytes"]:
            there = "its content is lost" if size is None else f"{size:,} of its {about['bytes']:,} bytes are there"
            raise OpenAIError(500, f"{id_} is damaged: {there}. Upload it again.", "id", "file_damaged")
        return about

    def url(self, owner: str, id_: str) -> str:
        """The content's fsspec URL."""
        return self._storage.fs.unstrip_protocol(self._path(owner, id_, CONTENT))

    def pieces(self, owner: str, id_: str) -> Iterator[bytes]:
        """The content, in pieces; closes the file after the last."""
        with self._storage.fs.open(self._path(owner, id_, CONTENT), "rb") as file:
            while piece := file.read(READ_BYTES):
                yield piece

    def delete(self, owner: str, id_: str) -> None:
        """Raises OpenAIError if the owner has no such file."""
        self.get(owner, id_)
        self.remove(owner, id_)

    def remove(self, owner: str, id_: str) -> None:
        """Removes a file, its metadata first."""
        self._storage.remove(self._path(owner, id_, ABOUT), self._path(owner, id_, CONTENT))

    def used(self, owner: str, besides: str = "") -> tuple[int, int]:
        """(number of files, bytes) of an owner, besides the file with this id.

        Counts contents whose metadata is yet to be written, and on a disk uploads as they grow, of all replicas. So of
        uploads at once, each that is counted after its content is there sees all others that may still be added.
        """
        count = size = 0
        for about in self._storage.entries("keys", owner, "files"):
            name = about["name"].rpartition("/")[2]
            arriving = name.endswith(CONTENT + PARTIAL) and time.time() - about.get("mtime", 0) < ARRIVING_S
            if about["type"] == "file" and (name.endswith(CONTENT) or arriving) and not name.startswith(besides or "/"):
                count, size = count + 1, size + (about["size"] or 0)
        return count, size

    def discard(self, owner: str, id_: str) -> None:
        """Removes the content of a file that is not to be added."""
        self._storage.remove(self._path(owner, id_, CONTENT))

    def tidy(self) -> int:
        """Removes what killed uploads left; returns the number of files removed."""
        removed = 0
        for owner in self._storage.names("keys"):
            try:
                names = set(self._storage.names("keys", owner, "files"))
            except NotADirectoryError:  # not ours
                continue
            for name in names:
                id_ = name.partition(".")[0]
                if is_id(id_) and id_ + ABOUT not in names and age_s(id_) > LEFTOVER_S:
                    self._storage.remove(self._storage.path("keys", owner, "files", name))
                    removed += 1
        return removed

    def _path(self, owner: str, id_: str, kind: str) -> str:
        return self._storage.path("keys", owner, "files", id_ + kind)
