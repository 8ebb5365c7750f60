"""Two routes of the Hugging Face hub, over real HTTP: a repository's list of files, and the files.

with hub(folder, home) as environment:      # a process with it finds the folder as someone/tiny
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPOSITORY = "someone/tiny"


class Hub(SimpleHTTPRequestHandler):
    """Answers for REPOSITORY alone, with the handler's folder."""

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, body: bool) -> None:
        path, root = self.path.split("?")[0], Path(self.directory)
        headers = {"X-Repo-Commit": "c" * 40}
        if path.startswith(f"/api/models/{REPOSITORY}"):
            sizes = {str(file.relative_to(root)): file.stat().st_size for file in root.rglob("*") if file.is_file()}
            listing = {"id": REPOSITORY, "sha": "c" * 40, "siblings": [{"rfilename": name} for name in sizes]}
            tree = [{"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in sizes.items()]
            data = json.dumps(tree if "/tree/" in path else listing).encode()
            headers["Content-Type"] = "application/json"
        elif path.startswith(f"/{REPOSITORY}/resolve/") and (file := root / path.split("/", 5)[5]).is_file():
            data = file.read_bytes()
            headers["ETag"] = f'"{path.replace("/", "-")}"'
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hub(folder: Path, home: Path) -> Iterator[dict[str, str]]:
    """Serve a folder; yields the variables that send huggingface_hub here. It keeps what it fetches under `home`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "*",
        }
    finally:
        server.shutdown()
        server.server_close()
