"""Random bodies to every route: each gets an answer or an error that explains it, never a server failure.

python -m tests.llm.batch_api.test_batches_fuzz 10000 [SEED]    # requests to each route; prints the seed
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from apps.llm.batch_api import runner
from apps.llm.batch_api.files.storage import new_id
from apps.llm.batch_api.records import Limits
from tests.llm.batch_api.serving import ENDPOINTS, StandIn, app_of, kept_in, lines
from tests.llm.batch_api.test_files_http import BOUNDARY, FILE, HEADERS, PURPOSE, form

ROUTES = ("GET /v1/files", "GET /v1/batches", "files/ID", "batches/ID", "POST /v1/files", "POST /v1/batches", "line")
WORDS = [
    "",
    "x",
    "..",
    "%2e%2e",
    "a/b",
    "\x00",
    "\ud800",
    "é",
    "file-",
    "24h",
    "9" * 400,
    "batch",
    "null",
    "limit",
    "~",
]
JSON_VALUES: list[Any] = [None, True, 0, -1, 10**30, 1.5, "", "24h", [], {}, ["a"], {"a": 1}, {"a": "b"}]


class Fuzz:
    def __init__(self, seed: int, folder: str):
        self.chance, self.kept = random.Random(seed), kept_in(folder, Limits(5000, 20))
        self.app = app_of(self.kept, StandIn())
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.ids = [new_id("file-"), new_id("batch_")]

    def value(self) -> Any:
        return self.chance.choice([*JSON_VALUES, *WORDS, *self.ids, *ENDPOINTS])

    def mangled(self, data: bytes) -> bytes:
        """The text with some bytes changed, removed or doubled."""
        data = bytearray(data)
        for _ in range(self.chance.choice((0, 1, 1, 2, 10))):
            at, size = self.chance.randrange(len(data) + 1), self.chance.randrange(1, 30)
            with_ = self.chance.choice((b"", self.chance.randbytes(size), data[at : at + size] * 2, b"\r\n", b"--"))
            data[at : at + size] = with_
        return bytes(data)

    def body(self, fields: dict[str, Any]) -> bytes:
        """A nearly valid JSON object."""
        for _ in range(self.chance.choice((0, 1, 1, 2))):
            fields = fields | {self.chance.choice([*fields, "x"]): self.value()}
        data = json.dumps(fields).encode()
        return data if self.chance.random() < 0.8 else self.mangled(data)

    def line(self) -> bytes:
        right = {"custom_id": self.chance.choice("abcdefgh"), "method": "POST", "url": ENDPOINTS[1]}
        return self.body(right | {"body": {"prompt": "p"} if self.chance.random() < 0.8 else self.value()})

    async def ask(self, client: httpx.AsyncClient, route: str) -> httpx.Response:
        chance = self.chance
        if route == "POST /v1/files":
            parts = [PURPOSE, FILE, (str(self.value()).encode(errors="replace").decode(), None, b"x")]
            data = self.mangled(form(*chance.sample(parts, chance.randint(0, 3))))
            headers = HEADERS if chance.random() < 0.9 else {"content-type": f"multipart/form-data; {BOUNDARY}"}
            return await client.post("/v1/files", content=data, headers=headers)
        if route == "POST /v1/batches":
            right = {"input_file_id": chance.choice(self.ids), "endpoint": ENDPOINTS[0], "completion_window": "24h"}
            # Most values are invalid metadata, which would keep most requests from later checks.
            right |= {"metadata": self.value()} if chance.random() < 0.3 else {}
            return await client.post("/v1/batches", content=self.body(right))
        if route == "line":
            data = b"\n".join(self.line() for _ in range(chance.randint(0, 5)))
            sent = await client.post("/v1/files", content=form(PURPOSE, ("file", "f", data)), headers=HEADERS)
            asked = {"input_file_id": sent.json()["id"], "endpoint": ENDPOINTS[1], "completion_window": "24h"}
            made = await client.post("/v1/batches", json=asked)
            while (now := await client.get(f"/v1/batches/{made.json()['id']}")).json()["status"] not in ENDED:
                await asyncio.sleep(0.01)
            return now
        if route.startswith("GET"):
            names = ("limit", "after", "order", "purpose")
            query = {chance.choice(names): str(self.value()).encode(errors="replace") for _ in range(2)}
            return await client.get(route.removeprefix("GET "), params=query)
        id_ = chance.choice([*self.ids, *WORDS[:6]]) + chance.choice(("", "", "/content", "/cancel", "/x"))
        path = f"/v1/{route.removesuffix('ID')}{quote(id_, '/%', errors='replace')}"
        return await client.request(chance.choice(("GET", "POST", "DELETE", "PUT")), path)

    async def run(self, count: int, routes: tuple[str, ...]) -> None:
        async with self.app.router.lifespan_context(self.app):
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                file = form(PURPOSE, ("file", "f", lines("a")))
                for route in routes:
                    sent = await client.post("/v1/files", content=file, headers=HEADERS)
                    self.ids.append(sent.json()["id"])
                    for _ in range(count // 10 if route == "line" else count):
                        answer = await self.ask(client, route)
                        self.statuses[route, answer.status_code] += 1
                        assert answer.status_code < 500, (route, answer.text)
                        if answer.status_code >= 400:
                            assert answer.json()["error"]["message"], (route, answer.text)
                        if route == "POST /v1/batches" and answer.status_code == 200:
                            await client.post(f"/v1/batches/{answer.json()['id']}/cancel")


SEED = 20261123  # fixed, so that failures come only from changes; the command above draws new bodies
ENDED = ("completed", "failed", "cancelled", "expired")


def test_random_bodies(tmp_path: Path) -> None:
    fuzz = Fuzz(SEED, str(tmp_path))
    asyncio.run(fuzz.run(200, ROUTES[:-1]))
    asyncio.run(Fuzz(SEED, str(tmp_path / "lines")).run(50, ("line",)))
    assert fuzz.statuses["POST /v1/files", 200] and fuzz.statuses["POST /v1/files", 400]
    assert fuzz.statuses["POST /v1/batches", 200] and fuzz.statuses["POST /v1/batches", 400]


if __name__ == "__main__":
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns()
    runner.CONFIRM_S = 0.0
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(seed, folder)
        asyncio.run(fuzz.run(int(sys.argv[1]), ROUTES))
    for (route, status), count in sorted(fuzz.statuses.items()):
        print(f"{route:20} {status} {count}")
