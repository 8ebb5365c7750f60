"""Two routes of the Hugging Face hub, over real HTTP: a repository's list of files, and the files.

with hub(folder, home) as environment:      # a process with it finds the folder as someone/tiny
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.http_servers import StandInHandler, StandInServer

REPOSITORY = "someone/tiny"


class Hub(StandInHandler):
    """Answers for REPOSITORY alone, with the server's folder."""

    def do_GET(self) -> None:
        path, root = self.path.split("?")[0], self.server.folder
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
            self.answer(status=404)
            return
        self.answer(data, headers=headers)

    do_HEAD = do_GET


class HubServer(StandInServer):
    def __init__(self, folder: Path):
        super().__init__(Hub)
        self.folder = folder


@contextmanager
def hub(folder: Path, home: Path) -> Iterator[dict[str, str]]:
    """Serve a folder; yields the variables that send huggingface_hub here. It keeps what it fetches under `home`."""
    with HubServer(folder) as server:
        yield {
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "*",
        }
