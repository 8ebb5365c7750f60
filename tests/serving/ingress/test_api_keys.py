"""Keys with and without names: what is known of them, who is let in, and as whom."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from apps.serving.ingress.api_keys import (
    SCOPE_PRINCIPAL,
    RequireKey,
    digest,
    principals,
    principals_from_environment,
)


def test_a_key_speaks_for_its_name_or_for_the_default() -> None:
    assert principals(["plain", " alice=secret ", "bob-2_x=k=e=y=="]) == {
        digest("plain"): "default",
        digest("secret"): "alice",
        digest("k=e=y=="): "bob-2_x",
    }


def test_a_name_may_have_two_keys_while_one_replaces_the_other() -> None:
    assert principals(["alice=old", "alice=new"]) == {digest("old"): "alice", digest("new"): "alice"}


@pytest.mark.parametrize(
    ("keys", "names"),
    [(["alice=K3y", "bob=K3y"], "alice and bob"), (["K3y", "bob=K3y"], "default and bob")],
)
def test_a_key_with_two_names_is_refused(keys: list[str], names: str) -> None:
    with pytest.raises(ValueError, match=f"one key has two names, {names}: entry 2 of api_keys") as refused:
        principals(keys)
    assert "K3y" not in str(refused.value)
    principals([keys[0], keys[0]])  # said twice is no contradiction


def test_padding_of_base64_is_no_name() -> None:
    assert principals(["QUJDREVG==", "default=abcd=="]) == {
        digest("QUJDREVG=="): "default",
        digest("abcd=="): "default",
    }


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("alice=", "NAME= without a key after it"),  # `alice=$UNSET`: anyone could guess that key
        ("abcd==", "A key that itself ends in = needs a name"),
        ("Alice=K3y", "NAME starts with a letter"),
        ("K3y=x", "a key that itself contains = needs a name in front"),
        ("", "must be KEY or NAME=KEY"),
        ("==", "must be KEY or NAME=KEY"),
        ("alice=schl\u00fcssel", "use ASCII"),  # clients send it in two encodings, or not at all
        ("alice=K3y\nx", "use ASCII"),
    ],
)
def test_an_entry_that_could_be_misread_is_refused(entry: str, said: str) -> None:
    with pytest.raises(ValueError, match="entry 2 of api_keys") as refused:
        principals(["fine", entry])
    assert said in str(refused.value) and "K3y" not in str(refused.value)


def test_the_environments_keys_join_the_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODSLICE_API_KEYS", "one, alice=two,")
    assert principals_from_environment() == {digest("one"): "default", digest("two"): "alice"}
    both = principals_from_environment(principals(["bob=three"]))
    assert sorted(both.values()) == ["alice", "bob", "default"]
    with pytest.raises(ValueError, match="two names, bob and alice: entry 2 of PODSLICE_API_KEYS"):
        principals_from_environment(principals(["bob=two"]))
    monkeypatch.delenv("PODSLICE_API_KEYS")
    assert principals_from_environment() == {}


async def whoami(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await JSONResponse({"principal": Request(scope).scope.get(SCOPE_PRINCIPAL)})(scope, receive, send)


def ask(key: str | None, path: str = "/publish", root: str = "") -> Response:
    guarded = RequireKey(
        whoami, principals(["alice=a-key", "other"]), lambda scope, message: PlainTextResponse(message, status_code=401)
    )

    async def call() -> Any:
        transport = httpx.ASGITransport(guarded, root_path=root)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(root + path, headers={} if key is None else {"Authorization": key})

    return asyncio.run(call())


def test_the_application_is_told_whose_key_it_was() -> None:
    assert ask("Bearer a-key").json() == {"principal": "alice"}
    assert ask("bearer  other ").json() == {"principal": "default"}


def test_a_name_is_no_key() -> None:
    for wrong in ("Bearer alice", "Bearer alice=a-key", "Bearer default"):
        assert (ask(wrong).status_code, ask(wrong).text) == (401, "Incorrect API key given.")
    for without in (None, "Bearer", "Bearer ", "Basic a-key"):
        assert ask(without).status_code == 401 and ask(without).text.startswith("No API key given")


def test_what_probes_ask_is_open_below_any_prefix() -> None:
    assert ask(None, "/health", "/cell").json() == {"principal": None}
    assert ask("Bearer wrong", "/health").status_code == 200
    assert ask(None, "/publish", "/cell").status_code == 401
    assert ask("Bearer a-key", "/health").json() == {"principal": "alice"}


@pytest.mark.parametrize(
    "path",
    ["//health", "/health/", "/health/../publish", "/%68ealth", "/health%2f", "/Health", "/health;x", "/metrics/x", ""],
)
@pytest.mark.parametrize("root", ["", "/cell", "/health"])
def test_only_the_probes_own_paths_are_open(path: str, root: str) -> None:
    """Written in another way, a path may mean another route to what stands before this server."""
    known = principals(["alice=a-key"])
    guarded = RequireKey(whoami, known, lambda scope, message: PlainTextResponse(message, status_code=401))
    statuses = []

    async def call() -> None:
        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        await guarded({"type": "http", "path": root + path, "root_path": root, "headers": []}, None, send)

    asyncio.run(call())
    assert statuses[0] == 401


def test_a_web_socket_is_closed() -> None:
    """No application has one; a route that one day does must not be open."""
    sent: list[Any] = []

    async def call() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        guarded = RequireKey(whoami, principals(["a-key"]), lambda scope, message: PlainTextResponse(message, 401))
        await guarded({"type": "websocket", "path": "/v1/realtime", "headers": []}, None, send)

    asyncio.run(call())
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_repeated_headers_and_both_headers() -> None:
    """Any valid key lets its owner in; an invalid one beside it takes nothing away and gives nothing."""
    guarded = RequireKey(
        whoami, principals(["alice=a-key"]), lambda scope, message: PlainTextResponse(message, status_code=401)
    )

    async def call(*headers: tuple[str, str], method: str = "GET") -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://test") as client:
            return (await client.request(method, "/publish", headers=list(headers))).status_code

    right, wrong = ("Authorization", "Bearer a-key"), ("x-api-key", "other")
    assert asyncio.run(call(right, wrong)) == 200
    assert asyncio.run(call(("Authorization", "Bearer other"), wrong)) == 401
    assert asyncio.run(call(("Authorization", "Bearer other, Bearer a-key"))) == 401
    for method in ("HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"):
        assert asyncio.run(call(method=method)) == 401
