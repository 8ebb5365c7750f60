"""Files in the storage: content and metadata. A file exists once its metadata does, which is written last."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import IO, Any

from apps.llm.batches.storage import READ_BYTES, Storage, age_s, is_id
from apps.serving.files import writing
from apps.serving.ingress.openai_errors import OpenAIError

ABOUT, CONTENT = ".json", ".jsonl"
LEFTOVER_S = 24 * 3600
"""Content older than this without metadata is what a killed upload left."""

File = dict[str, Any]
"""A file object of OpenAI's API."""


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
        (about,) = self._storage.read([self._path(owner, id_, ABOUT)]) if is_id(id_) else [None]
        if about is None:
            raise OpenAIError(404, f"No such File object: {id_}", "id", "file_not_found")
        return about

    def newest_first(self, owner: str) -> list[str]:
        """Ids of all of the owner's files."""
        names = self._storage.names("keys", owner, "files")
        return [name.removesuffix(ABOUT) for name in reversed(names) if name.endswith(ABOUT)]

    def several(self, owner: str, ids: list[str]) -> list[File | None]:
        """The files with these ids; None for one that does not exist."""
        return self._storage.read([self._path(owner, id_, ABOUT) for id_ in ids])

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
        self._storage.remove(self._path(owner, id_, ABOUT), self._path(owner, id_, CONTENT))

    def tidy(self) -> int:
        """Removes what killed uploads left; returns the number of files removed."""
        removed = 0
        for owner in self._storage.names("keys"):
            names = set(self._storage.names("keys", owner, "files"))
            for name in names:
                id_ = name.partition(".")[0]
                if is_id(id_) and id_ + ABOUT not in names and age_s(id_) > LEFTOVER_S:
                    self._storage.remove(self._storage.path("keys", owner, "files", name))
                    removed += 1
        return removed

    def _path(self, owner: str, id_: str, kind: str) -> str:
        return self._storage.path("keys", owner, "files", id_ + kind)
