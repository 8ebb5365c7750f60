"""One damaged file among the batches of several keys: whatever it is, all other batches end as if nothing had happened.

The right answers are those of an undisturbed run of the same batches.
"""

import asyncio
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from apps.llm.batch_api import runner, work
from apps.llm.batch_api.records import BatchStore
from apps.llm.batch_api.runner import Runner
from tests.llm.batch_api.serving import StandIn, app_of, kept_in
from tests.llm.batch_api.test_batches_taken_over import begin, has_ended, until

OWNERS = ("a", "b", "c")
KEYS = tuple(f"{owner}={owner}-key" for owner in OWNERS)
LINES = 12
ANSWERED = 2 * LINES + 7
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.05)
    monkeypatch.setattr(runner, "PAUSE_S", 0.1)
    monkeypatch.setattr(runner, "MAX_PAUSE_S", 0.2)
    monkeypatch.setattr(work, "SAVE_PERIOD_S", {True: (0.0, 0.02), False: (0.0, 0.02)})


def replaced(text: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(text(path.read_bytes()))


def edited(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], object]:
    """Changes the JSON object of the first line."""

    def edit(path: Path) -> None:
        first, end, rest = path.read_bytes().partition(b"\n")
        try:
            path.write_bytes(json.dumps(change(json.loads(first))).encode() + end + rest)
        except (ValueError, AttributeError):
            path.write_bytes(b"{" + first + end + rest)

    return edit


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").touch()


def a_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": replaced(lambda text: b""),
    "cut": replaced(lambda text: text[: len(text) // 2]),
    "zeros": replaced(lambda text: bytes(len(text))),
    "garbage": replaced(lambda text: b"\xff\x00{[" * 40),
    "one byte": replaced(lambda text: text[: len(text) // 2] + b"#" + text[len(text) // 2 + 1 :]),
    "a list": replaced(lambda text: b"[]"),
    "null": replaced(lambda text: b"null"),
    "no field": replaced(lambda text: b"{}"),
    "deep": replaced(lambda text: b'{"a":' * 100_000),
    "huge": replaced(lambda text: b" " * 5_000_000),
    "not finite": edited(lambda fields: fields | {"created_at": float("nan"), "expires_at": float("inf")}),
    "half a surrogate": replaced(lambda text: b'{"owner": "\\ud800", "id": "\\ud800"}'),
    "other types": edited(lambda fields: {name: [str(value)] for name, value in fields.items()}),
    "texts": edited(lambda fields: dict.fromkeys(fields, "x")),
    "an unknown field": edited(lambda fields: fields | {"priority": {"class": "high"}}),
    "an unknown status": edited(lambda fields: fields | {"status": "resting"}),
    "another format": edited(lambda fields: {"version": 9, "content": fields}),
    "gone": lambda path: path.unlink(),
    "a folder": a_folder,
    "a link to itself": a_link_to_itself,
    "a pipe": a_pipe,
}
QUICK = ("cut", "zeros", "null", "other types", "gone", "a folder", "a pipe")
EACH_DAMAGE = pytest.mark.parametrize(
    "damage", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in DAMAGE]
)


def made(folder: Path) -> tuple[BatchStore, dict[str, str]]:
    """A store with two batches of each key; id -> owner."""
    kept = kept_in(folder)
    ids = {}
    for owner in OWNERS:
        for number in range(2):
            ids[begin(kept, *(f"{owner}-{number}-{line}" for line in range(LINES)), owner=owner)] = owner
    return kept, ids


async def half_done(kept: BatchStore, ids: dict[str, str]) -> None:
    """Works on them until some have ended and one is in its middle."""
    model = StandIn(max_batch_size=30, may_answer=asyncio.Semaphore(ANSWERED))

    def begun() -> bool:
        found = [kept.records.get(owner, id_)["request_counts"]["completed"] for id_, owner in ids.items()]
        return sum(found) >= ANSWERED

    async with Runner(kept).running(model, model):
        await until(begun)


def results(kept: BatchStore, id_: str, owner: str) -> list[tuple[Any, ...]]:
    """(custom_id, status, body) of each line."""
    about = kept.records.get(owner, id_)
    names = [about[name] for name in ("output_file_id", "error_file_id") if about[name]]
    found = [json.loads(line) for name in names for line in b"".join(kept.files.pieces(owner, name)).splitlines()]
    return [(line["custom_id"], line["response"]["status_code"], line["response"]["body"]) for line in found]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[Any, ...]]]:
    """The results of each batch."""
    folder = tmp_path_factory.mktemp("undisturbed")
    kept, ids = made(folder)
    seen = asyncio.run(finished(kept, folder, ids, set(ids)))
    assert {item["status"] for item in seen.values()} == {"completed", "processed"}
    return [results(kept, id_, owner) for id_, owner in ids.items()]


def concerned(path: Path, kept: BatchStore, ids: dict[str, str]) -> set[str]:
    """The batches that this file is of."""
    name, found = path.name.partition(".")[0], set[str]()
    for id_, owner in ids.items():
        about = kept.records.get(owner, id_)
        files = (about["input_file_id"], about["output_file_id"], about["error_file_id"])
        if id_ in path.parts or name in (id_, *files):
            found.add(id_)
    return found


async def finished(kept: BatchStore, folder: Path, ids: dict[str, str], others: set[str]) -> dict[str, Any]:
    """Runs a server until all have ended, those of `others` surely; returns each batch as its key sees it."""
    model = StandIn()
    app = app_of(kept, model, KEYS)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):

        async def ask(method: str, path: str, owner: str) -> httpx.Response:
            answer = await client.request(method, path, headers={"Authorization": f"Bearer {owner}-key"})
            assert str(folder) not in answer.text and "keys/" not in answer.text
            return answer

        looks = 0
        for _ in range(3000):
            seen = {}
            for owner in OWNERS:
                for kind in ("files", "batches"):
                    answer = await ask("GET", f"/v1/{kind}?limit=100", owner)
                    assert answer.status_code == 200, answer.text
                    seen |= {item["id"]: item for item in answer.json()["data"]}
            if all(id_ not in ids or item["status"] in ENDED for id_, item in seen.items()):
                break
            looks += all(seen[id_]["status"] in ENDED for id_ in others)
            if looks == 50:  # a batch that is left alone may never end
                break
            await asyncio.sleep(0.02)
        for id_, owner in ids.items():
            assert (await ask("GET", f"/v1/batches/{id_}", owner)).status_code in (200, 404)
        for id_ in seen.keys() - ids.keys():
            for owner in OWNERS:
                for part in ("", "/content"):
                    answer = await ask("GET", f"/v1/files/{id_}{part}", owner)
                    assert answer.status_code in (200, 404) or "damaged" in answer.text, answer.text
    return seen


def check(
    folder: Path, undisturbed: list[Any], damage: str, choose: Callable[[list[Path]], Path], half: bool
) -> dict[str, Any]:
    """Damages a file; returns the first batch as its key sees it in the end."""
    kept, ids = made(folder)
    if half:
        asyncio.run(half_done(kept, ids))
    path = choose(sorted(path for path in folder.rglob("*") if path.is_file()))
    theirs = concerned(path, kept, ids)
    DAMAGE[damage](path)
    kept, where = kept_in(folder), f"{damage} in {path.relative_to(folder)}"
    seen = asyncio.run(finished(kept, folder, ids, ids.keys() - theirs))
    for (id_, owner), right in zip(ids.items(), undisturbed):
        assert len(right) == LINES
        if id_ not in theirs:
            assert seen[id_]["status"] == "completed", where
            assert results(kept, id_, owner) == right, where
        elif id_ in seen and seen[id_]["status"] == "completed" and path.parent.name != "files":
            assert results(kept, id_, owner) == right, where
        elif id_ in seen and seen[id_]["status"] == "failed":
            assert seen[id_]["errors"]["data"][0]["message"], where
    return seen.get(next(iter(ids)), {})


@EACH_DAMAGE
def test_any_file_in_the_middle(damage: str, tmp_path: Path, undisturbed: list[Any]) -> None:
    kinds = ("open/", "batch.json", "progress.json", "part-", "files/file-")
    for seed in range(2):
        chance = random.Random(f"{damage} {seed}")

        def choose(files: list[Path], chance: random.Random = chance) -> Path:
            by_kind = [[path for path in files if kind in str(path)] for kind in kinds]
            return chance.choice(chance.choice([found for found in by_kind if found]))

        check(tmp_path / str(seed), undisturbed, damage, choose, half=True)


@EACH_DAMAGE
def test_a_marker(damage: str, tmp_path: Path, undisturbed: list[Any]) -> None:
    """Before anything was answered. The batch itself goes on, unless its marker is gone."""

    def choose(files: list[Path]) -> Path:
        return next(path for path in files if path.parent.name == "open")

    first = check(tmp_path, undisturbed, damage, choose, half=False)
    assert first["status"] == ("validating" if damage == "gone" else "completed")


@pytest.mark.parametrize("damage", ["empty", "another format", "a folder"])
@pytest.mark.parametrize("name", ["batch.json", "progress.json", "lease.json", "end.json", "cancel.json"])
def test_each_record(name: str, damage: str, tmp_path: Path, undisturbed: list[Any]) -> None:
    """Of a batch that is half done, whose saved answers are kept."""
    kept, ids = made(tmp_path)
    asyncio.run(half_done(kept, ids))

    def is_half_done(id_: str) -> bool:
        about = kept.records.get(ids[id_], id_)
        return about["status"] not in ENDED and about["request_counts"]["completed"] > 0

    number, id_ = next((number, id_) for number, id_ in enumerate(ids) if is_half_done(id_))
    path = Path(kept.records.path(ids[id_], id_, name))
    path.touch()
    DAMAGE[damage](path)
    kept = kept_in(tmp_path)
    seen = asyncio.run(finished(kept, tmp_path, ids, ids.keys() - {id_}))
    assert all(seen[other]["status"] == "completed" for other in ids.keys() - {id_})
    wanted = {"batch.json": {"failed"}, "cancel.json": {"cancelled", "completed"}}.get(name, {"completed", "failed"})
    assert seen[id_]["status"] in wanted
    if name == "batch.json":
        assert seen[id_]["errors"]["data"][0]["code"] == "record_damaged"
    if (name, damage) != ("end.json", "a folder"):  # in its place nothing can be recorded
        found = results(kept, id_, ids[id_])
        assert found and set(map(str, found)) <= set(map(str, undisturbed[number]))


def test_more_broken_batches_than_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine that can never be worked on hold no place of the one that can."""
    kept = kept_in(tmp_path)
    for number in range(runner.MAX_WORKING + 1):
        broken = begin(kept, f"{number}", owner="a")
        Path(kept.records.path("a", broken, "end.json")).mkdir()
    good = begin(kept, "good", owner="b")
    model = StandIn()

    async def run() -> None:
        async with Runner(kept).running(model, model):
            await until(lambda: kept.records.get("b", good)["status"] == "completed")

    asyncio.run(run())


def test_a_line_that_panics_fails_alone(tmp_path: Path) -> None:
    """What a library in Rust raises when it panics is no Exception; a cancellation may come from inside, too."""

    class Panic(BaseException):
        pass

    class Panicking(StandIn):
        async def _answer(self, body: dict[str, Any]) -> Any:
            match body["prompt"]:
                case "panic":
                    raise Panic("in a regular expression")
                case "cancelled":
                    raise asyncio.CancelledError
                case "plain":
                    return PlainTextResponse("Internal Server Error", 500)
            return await super()._answer(body)

    kept, model = kept_in(tmp_path), Panicking()
    id_ = begin(kept, "1", "panic", "2", "cancelled", "3", "plain", "4")

    async def run() -> None:
        async with Runner(kept).running(model, model):
            await until(lambda: has_ended(kept, id_))

    asyncio.run(run())
    about = kept.records.get("default", id_)
    assert about["status"] == "completed" and about["request_counts"] == {"total": 7, "completed": 4, "failed": 3}
    assert [(name, status) for name, status, _ in results(kept, id_, "default")] == [
        *((f"line-{line}", 200) for line in (0, 2, 4, 6)),
        *((f"line-{line}", 500) for line in (1, 3, 5)),
    ]
