"""Optional API keys: `Authorization: Bearer KEY`, as OpenAI's clients send it, or `x-api-key: KEY`, as Anthropic's do.

A key may have a name, `alice=KEY`: its principal, which identifies the caller in a cell's ACLs and in logs. Several
keys may share a name, so that a new key can be handed out before the old one is revoked.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from starlette.responses import Response

OPEN_PATHS = frozenset({"/", "/health", "/healthz", "/healthcheck", "/metrics"})
"""Paths for probes and scrapers, which send no key: health, and a replica's load."""
VARIABLE = "PODSLICE_API_KEYS"
DEFAULT_PRINCIPAL = "default"
"""Principal of a key without a name."""
SCOPE_PRINCIPAL = "podslice.principal"
"""Key of the caller's principal in an ASGI scope; absent if no keys are required."""

_NAMED = re.compile(r"([a-z][a-z0-9_-]*)=(.*)", re.DOTALL)

Asgi = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
Principals = Mapping[bytes, str]
"""Digest of each known key -> its principal."""
OPEN: Principals = {}
"""No keys: open to everyone."""


def digest(key: str) -> bytes:
    """A key's digest, which is kept instead of the key: enough to recognize the key, not to use it."""
    return hashlib.sha256(key.encode()).digest()


def principals(keys: Iterable[str], where: str = "api_keys", known: Principals = OPEN) -> Principals:
    """Digests and principals of keys written as `KEY` or `NAME=KEY`, added to those already known.

    Raises:
        ValueError: an entry has neither form, a key cannot be sent, or one key has two names. The message never has a
            key.
    """
    found = dict(known)
    for place, written in enumerate(keys, 1):
        name, key = _parsed(written.strip(), f"entry {place} of {where}")
        if not (key.isascii() and key.isprintable()):
            raise ValueError(f"entry {place} of {where} has characters that clients cannot send in a header: use ASCII")
        other = found.setdefault(digest(key), name)
        if other != name:
            raise ValueError(
                f"one key has two names, {other} and {name}: entry {place} of {where}. A key belongs to one principal; "
                "give each its own key"
            )
    return found


def principals_from_environment(known: Principals = OPEN) -> Principals:
    """`principals` of the comma-separated keys in PODSLICE_API_KEYS. Raises ValueError."""
    keys = os.environ.get(VARIABLE, "").split(",")
    return principals((key for key in keys if key.strip()), VARIABLE, known)


def _parsed(written: str, where: str) -> tuple[str, str]:
    """Name and key. Only a key without a name may end in `=`, as base64 does; any other `=` follows a name."""
    if named := _NAMED.fullmatch(written):
        name, key = named[1], named[2].strip()
        if key.strip("="):
            return name, key
        raise ValueError(
            f"{where} is NAME= without a key after it (an empty variable?). A key that itself ends in = needs a name "
            "in front: NAME=KEY"
        )
    unpadded = written.rstrip("=")
    if not unpadded or "=" in unpadded:
        raise ValueError(
            f"{where} must be KEY or NAME=KEY, where NAME starts with a letter and has lowercase letters, digits, - "
            "and _; a key that itself contains = needs a name in front"
        )
    return DEFAULT_PRINCIPAL, written


class RequireKey:
    """ASGI middleware: answers a request without a known key with `refused(scope, message)`.

    Other requests reach the application with the key's principal in the scope: see `principal_of`.
    """

    def __init__(self, app: Asgi, principals: Principals, refused: Callable[[dict[str, Any], str], Response]):
        self._app, self._principals, self._refused = app, principals, refused

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":  # no application has any; a refusal needs no key
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http":
            caller = principal(scope, self._principals)
            if caller is not None:
                scope = scope | {SCOPE_PRINCIPAL: caller}
            elif scope["path"].removeprefix(scope.get("root_path", "")) not in OPEN_PATHS:
                problem = (
                    "Incorrect API key given."
                    if _keys(scope)
                    else "No API key given: send it in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
                )
                await self._refused(scope, problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def principal(scope: Mapping[str, Any], principals: Principals) -> str | None:
    """The principal of a request's key; None without a known key."""
    return next(filter(None, (_of(key, principals) for key in _keys(scope))), None)


def principal_of(scope: Mapping[str, Any]) -> str | None:
    """The principal that `RequireKey` admitted; None where no keys are required."""
    return scope.get(SCOPE_PRINCIPAL)


def _of(key: str, principals: Principals) -> str | None:
    """The key's principal. Compares with every key in constant time, so that timing reveals nothing about them."""
    offered, found = digest(key), None
    for expected, name in principals.items():
        if hmac.compare_digest(offered, expected):
            found = name
    return found


def _keys(scope: Mapping[str, Any]) -> list[str]:
    """The keys in a request's headers."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    scheme, _, key = headers.get(b"authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, headers.get(b"x-api-key", "").strip()) if key]
