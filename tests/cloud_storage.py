"""Cloud Storage's JSON API, as far as gcsfs asks for it, over real HTTP: objects with generations, in memory.

    with cloud_storage() as storage:        # sets STORAGE_EMULATOR_HOST for this process and its children
        fsspec.open("gs://bucket/name")

Whole objects only appear, large ones after an upload in pieces; `ifGenerationMatch=0` makes one only if there is none,
else 412. `lose_answers` breaks requests.
"""

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit

from tests.http_servers import StandInHandler, StandInServer

OBJECTS = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o(?:/(.+))?")
UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")


@dataclass
class Storage:
    """What the buckets hold."""

    objects: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    """(bucket, name) -> generation, content."""
    lose_answers: int = 0
    """So many uploads are kept, and answered with 503: the client sends them again."""
    begun: dict[str, tuple[str, str, bytearray]] = field(default_factory=dict)
    """Uploads in pieces that have not ended: upload's id -> bucket, name, what has come."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    generation: int = 0

    def names(self, bucket: str) -> list[str]:
        return sorted(name for known, name in self.objects if known == bucket)

    def put(self, bucket: str, name: str, content: bytes, only_new: bool = False) -> dict[str, Any] | None:
        """The object's metadata; None: there is one already."""
        with self.lock:
            if only_new and (bucket, name) in self.objects:
                return None
            self.generation += 1
            self.objects[bucket, name] = self.generation, content
            return self.metadata(bucket, name)

    def metadata(self, bucket: str, name: str) -> dict[str, Any]:
        generation, content = self.objects[bucket, name]
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "id": f"{bucket}/{name}/{generation}",
            "generation": str(generation),
            "size": str(len(content)),
            "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode(),
            "timeCreated": "2026-01-01T00:00:00.000Z",
            "updated": "2026-01-01T00:00:00.000Z",
        }


@contextmanager
def cloud_storage() -> Iterator[Storage]:
    with _Server() as server:
        # Each process would look for a metadata server of Google's for some seconds, to ask for credentials.
        environment = {"STORAGE_EMULATOR_HOST": server.url, "NO_GCE_CHECK": "true"}
        try:
            with mock.patch.dict(os.environ, environment):
                yield server.storage
        finally:
            import gcsfs

            gcsfs.GCSFileSystem.clear_instance_cache()


class _Server(StandInServer):
    def __init__(self) -> None:
        super().__init__(_Handler)
        self.storage = Storage()


class _Handler(StandInHandler):
    protocol_version = "HTTP/1.1"

    @property
    def storage(self) -> Storage:
        return self.server.storage

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        match = OBJECTS.fullmatch(url.path)
        if match is None:
            return self.answer({"error": {"code": 404, "message": "no such thing"}}, 404)
        bucket, name = match[1], unquote(match[2] or "")
        if not name:
            return self.answer(self._listing(bucket, query))
        if (bucket, name) not in self.storage.objects:
            return self.answer({"error": {"code": 404, "message": f"No such object: {bucket}/{name}"}}, 404)
        if query.get("alt") == "media":
            return self._content(self.storage.objects[bucket, name][1])
        return self.answer(self.storage.metadata(bucket, name))

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        data = self.body()
        match = UPLOAD.fullmatch(url.path)
        if match and "upload_id" in query:
            return self._piece(query["upload_id"], data)
        if match and query.get("uploadType") == "resumable":
            return self._begin(match[1], json.loads(data)["name"])
        if match is None or query.get("uploadType") != "multipart":
            return self.answer({"error": {"code": 404, "message": "no such thing"}}, 404)
        boundary = b"--" + self.headers["Content-Type"].split("boundary=")[1].strip('"').encode()
        _, about, content, _ = data.split(boundary, 3)
        name = json.loads(about.split(b"\n\n", 1)[1])["name"]
        content = content.split(b"\n\n", 1)[1][:-1]  # the line break before the boundary is not part of it
        made = self.storage.put(match[1], name, content, query.get("ifGenerationMatch") == "0")
        if made is None:
            return self.answer({"error": {"code": 412, "message": "conditionNotMet"}}, 412)
        if self.storage.lose_answers:
            self.storage.lose_answers -= 1
            return self.answer({"error": {"code": 503, "message": "backendError"}}, 503)
        return self.answer(made)

    def do_DELETE(self) -> None:
        url = urlsplit(self.path)
        if UPLOAD.fullmatch(url.path):
            self.storage.begun.pop(parse_qs(url.query)["upload_id"][0], None)
            return self.answer({}, 499)
        match = OBJECTS.fullmatch(url.path)
        found = match and self.storage.objects.pop((match[1], unquote(match[2])), None)
        return self.answer(b"" if found else {"error": {"code": 404, "message": "gone"}}, 204 if found else 404)

    def _begin(self, bucket: str, name: str) -> None:
        storage = self.storage
        with storage.lock:
            upload = str(len(storage.begun) + storage.generation * 1000)
            storage.begun[upload] = bucket, name, bytearray()
        place = f"http://{self.headers['Host']}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload}"
        self.answer({}, headers={"Location": place})

    def _piece(self, upload: str, data: bytes) -> None:
        """`Content-Range: bytes 0-9/*`, more will come; `bytes 10-19/20` or `bytes */20`, that was all."""
        bucket, name, content = self.storage.begun[upload]
        content += data
        if self.headers["Content-Range"].endswith("/*"):
            return self.answer(b"", 308, {"Range": f"bytes=0-{len(content) - 1}"})
        assert self.headers["Content-Range"].endswith(f"/{len(content)}")
        del self.storage.begun[upload]
        return self.answer(self.storage.put(bucket, name, bytes(content)))

    def _listing(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        items, prefixes = [], set()
        for name in self.storage.names(bucket):
            if not name.startswith(prefix):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                items.append(self.storage.metadata(bucket, name))
        return {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)}

    def _content(self, content: bytes) -> None:
        first, last, status = 0, len(content) - 1, 200
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last, status = int(match[1]), min(int(match[2] or last), last), 206
        more = {"Content-Range": f"bytes {first}-{last}/{len(content)}"} if status == 206 else {}
        self.answer(content[first : last + 1], status, {"Content-Type": "application/octet-stream"} | more)
