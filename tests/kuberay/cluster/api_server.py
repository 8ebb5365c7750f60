"""A Kubernetes API server double on localhost: the protocol over HTTP, a store behind it, and trouble on demand."""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from object_store import CORE, KUEUE, MONITORING, RAY, Failure, Kind, ObjectStore, as_json, matches

TOKEN = "the-right-token"


@dataclass
class Trouble:
    """Befalls the next `times` requests whose method and path it names."""

    kind: str  # status, unauthorized, reset, slow
    times: int = 1
    method: str = ""
    path: str = ""
    code: int = 503
    message: str = "injected"
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def befalls(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in ("", method) and self.path in path


class ApiServer:
    def __init__(self, kinds: tuple[Kind, ...] = (*CORE, *RAY, *KUEUE, *MONITORING)):
        self.store = ObjectStore(kinds)
        self.troubles: list[Trouble] = []
        self.forbidden: set[str] = set()  # plurals
        self.requests: list[tuple[str, str]] = []  # method, path with query
        self.watches = 0  # open now
        self.stopping = False
        self.hang_ups = 0  # counts calls of hang_up
        handler = type("Bound", (Handler,), {"api": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.stopping = True
        self.hang_up()
        self._http.shutdown()
        self._http.server_close()

    def hang_up(self) -> None:
        """Ends every open watch without a word."""
        with self.store.changed:
            self.hang_ups += 1
            self.store.changed.notify_all()

    def trouble(self, kind: str, **how: Any) -> Trouble:
        self.troubles.append(Trouble(kind, **how))
        return self.troubles[-1]

    def calls(self, method: str, path: str = "") -> int:
        return sum(made == method and path in where for made, where in self.requests)

    def event(self, about: dict[str, Any], reason: str, message: str, kind: str = "Warning", at: str = "") -> None:
        name = f"{about['metadata']['name']}.{len(self.store.history)}"
        involved = {"kind": about["kind"], "name": about["metadata"]["name"], "uid": about["metadata"]["uid"]}
        self.store.put(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name},
                "involvedObject": involved,
                "reason": reason,
                "message": message,
                "type": kind,
                "lastTimestamp": at or "2026-01-01T02:14:00Z",
            }
        )

    def kubeconfig(
        self, path: Path, token: str = TOKEN, context: str = "gke_proj_us-central2-b_night", **user: Any
    ) -> str:
        """Writes a kubeconfig for this server and returns its path."""
        entry = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [{"name": "night", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": user or {"token": token}}],
            "contexts": [{"name": context, "context": {"cluster": "night", "user": "me", "namespace": "default"}}],
        }
        path.write_text(yaml.safe_dump(entry))
        return str(path)


class Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError, BrokenPipeError):
            super().handle()

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        self.api.requests.append((method, self.path))
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        with self._failures():
            if self._befallen(method):
                return
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Failure(401, "Unauthorized", "Unauthorized")
            body = json.loads(raw) if raw else {}
            self._route(method, url.path.strip("/").split("/"), query, body)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except Failure as failure:
            status = {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Failure",
                "message": failure.message,
                "reason": failure.reason,
                "details": failure.details,
                "code": failure.code,
            }
            self._answer(status, failure.code)

    def _befallen(self, method: str) -> bool:
        trouble = next((item for item in self.api.troubles if item.befalls(method, self.path)), None)
        if trouble is None:
            return False
        trouble.times -= 1
        if trouble.kind == "unauthorized":
            raise Failure(401, "Unauthorized", "Unauthorized")
        if trouble.kind == "slow":
            time.sleep(trouble.seconds)
            return False
        if trouble.kind == "reset":
            # A linger of nothing: closing sends RST.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return True
        self._answer(
            {"kind": "Status", "message": trouble.message, "code": trouble.code}, trouble.code, trouble.headers
        )
        return True

    def _answer(self, body: Any, code: int = 200, headers: dict[str, str] | None = None) -> None:
        payload = as_json(body)
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(payload))}.items():
            self.send_header(name, value)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def _route(self, method: str, parts: list[str], query: dict[str, str], body: dict[str, Any]) -> None:
        match parts:
            case ["version"]:
                return self._answer({"major": "1", "minor": "34", "gitVersion": "v1.34.0-gke.1"})
            case ["api"]:
                return self._answer({"kind": "APIVersions", "versions": ["v1"]})
            case ["apis"]:
                return self._answer(self._groups())
            case ["api", version] | ["apis", _, version] if version.startswith("v"):
                return self._answer(self._resources("/".join(parts[1:])))
            case ["api", version, *rest]:
                return self._object(method, version, rest, query, body)
            case ["apis", group, version, *rest]:
                return self._object(method, f"{group}/{version}", rest, query, body)
        raise Failure(404, "NotFound", "the server could not find the requested resource")

    def _groups(self) -> dict[str, Any]:
        versions = dict.fromkeys(kind.group_version for kind in self.api.store.kinds if kind.group)
        groups = []
        for group_version in versions:
            entry = {"groupVersion": group_version, "version": group_version.rpartition("/")[2]}
            name = group_version.rpartition("/")[0]
            groups.append({"name": name, "versions": [entry], "preferredVersion": entry})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _resources(self, group_version: str) -> dict[str, Any]:
        mine = [kind for kind in self.api.store.kinds if kind.group_version == group_version]
        if not mine:
            raise Failure(404, "NotFound", "the server could not find the requested resource")
        resources = [
            {
                "name": kind.plural + suffix,
                "singularName": kind.kind.lower(),
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": ["get", "list", "watch", "patch", "create", "update", "delete"],
            }
            for kind in mine
            for suffix in ("", "/status")
        ]
        return {"kind": "APIResourceList", "groupVersion": group_version, "resources": resources}

    def _object(
        self, method: str, group_version: str, rest: list[str], query: dict[str, str], body: dict[str, Any]
    ) -> None:
        store = self.api.store
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
            namespace, rest = rest[1], rest[2:]
        kind = store.kind(group_version, rest[0])
        name, subresource = [*rest[1:], "", ""][:2]
        dry_run = query.get("dryRun") == "All"
        manager = query.get("fieldManager", self.headers.get("User-Agent", "").split("/")[0])
        if kind.plural in self.api.forbidden:
            message = f'{kind.qualified} is forbidden: User "me" cannot {method.lower()} resource "{kind.plural}"'
            raise Failure(403, "Forbidden", message)
        match method:
            case "GET" if name:
                self._answer(store.get(kind, namespace, name))
            case "GET" if query.get("watch", "").lower() in ("true", "1"):
                self._watch(kind, namespace, query)
            case "GET":
                self._list(kind, namespace, query)
            case "PATCH" if self.headers["Content-Type"] == "application/apply-patch+yaml":
                force = query.get("force", "").lower() == "true"
                result, created = store.apply(kind, namespace, name, body, manager, force, dry_run)
                self._answer(result, 201 if created else 200)
            case "POST":
                self._answer(store.create(kind, namespace, body, manager, dry_run), 201)
            case "PUT":
                self._answer(store.replace(kind, namespace, name, body, manager, subresource, dry_run))
            case "DELETE":
                store.delete(kind, namespace, name, body, dry_run)
                self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})
            case _:
                raise Failure(415, "UnsupportedMediaType", f"{method} {self.headers['Content-Type']}")

    def _list(self, kind: Kind, namespace: str, query: dict[str, str]) -> None:
        items, version = self.api.store.list(
            kind, namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        start, size = int(query.get("continue", 0)), int(query.get("limit", 0)) or len(items)
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if start + size < len(items):
            metadata["continue"] = str(start + size)
        page = [{part: item[part] for part in item if part not in ("apiVersion", "kind")} for item in items[start:]]
        listed = {"kind": f"{kind.kind}List", "apiVersion": kind.group_version, "metadata": metadata}
        self._answer(listed | {"items": page[:size]})

    def _watch(self, kind: Kind, namespace: str, query: dict[str, str]) -> None:
        store = self.api.store
        version = int(query.get("resourceVersion") or 0)
        deadline = time.monotonic() + float(query.get("timeoutSeconds", 60))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.api.watches += 1
        calls = self.api.hang_ups
        try:
            while not self.api.stopping and self.api.hang_ups == calls and time.monotonic() < deadline:
                with store.changed:
                    gone = version < store.oldest
                    news = [change for change in store.history if change[0] > version]
                    if not gone and not news:
                        store.changed.wait(0.2)
                        continue
                if gone:
                    message = f"too old resource version: {version} ({store.oldest})"
                    self._chunk("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": message})
                    break
                version = news[-1][0]
                for _, type_, key, item in news:
                    if matches(
                        key, item, kind, namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
                    ):
                        self._chunk(type_, item)
            self.wfile.write(b"0\r\n\r\n")
        finally:
            self.api.watches -= 1

    def _chunk(self, type_: str, item: dict[str, Any]) -> None:
        line = as_json({"type": type_, "object": item}) + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()
