"""Responses stored in a replica's memory: limits on number and bytes, separation of callers."""

from apps.llm.http.responses.store import ResponseStore, StoredResponse


def kept(size: int = 10, owner: str | None = "alice") -> StoredResponse:
    return StoredResponse(owner, b"r" * (size - 4), b"item")


def test_the_oldest_make_room() -> None:
    store = ResponseStore(3, most_bytes=100)
    for name in "abcd":
        store.put(name, kept())
    assert [name for name in "abcd" if store.get(name, "alice")] == ["b", "c", "d"] and store.bytes == 30
    store.put("e", kept(85))
    assert [name for name in "bcde" if store.get(name, "alice")] == ["d", "e"] and store.bytes == 95


def test_one_that_is_too_large_takes_none_away() -> None:
    store = ResponseStore(3, most_bytes=100)
    store.put("a", kept())
    store.put("b", kept(101))
    assert store.get("a", "alice") and store.get("b", "alice") is None and (len(store), store.bytes) == (1, 10)


def test_each_callers_are_its_own() -> None:
    store = ResponseStore(3)
    store.put("a", kept())
    store.put("b", kept(owner=None))
    assert store.get("a", "bob") is None and not store.delete("a", "bob") and store.get("a", None) is None
    assert store.get("b", None) and store.get("b", "alice") is None
    assert store.delete("a", "alice") and not store.delete("a", "alice")
    assert (len(store), store.bytes) == (1, 10)
