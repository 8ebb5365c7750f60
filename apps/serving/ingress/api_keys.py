"""Optional API keys: `Authorization: Bearer KEY`, as OpenAI's clients send it, or `x-api-key: KEY`, as Anthropic's do.

A key may have a name, `alice=KEY`: the principal that it speaks for, by which a cell's ACLs and logs know the caller.
Several keys may share a name, so that a new one can be handed out before the old one is taken back.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from starlette.responses import Response

OPEN_PATHS = frozenset({"/", "/health", "/healthz", "/healthcheck"})
"""What probes ask: open to all, as it tells nothing and costs nothing."""
VARIABLE = "PODSLICE_API_KEYS"
DEFAULT_PRINCIPAL = "default"
"""Whom a key without a name speaks for."""
SCOPE_PRINCIPAL = "podslice.principal"
"""Where an ASGI scope holds the caller's principal; absent where no keys are asked for."""
RELAY = "/cell"
"""Principal of a cell's fronts at the models' applications; no key that anybody configures can have this name."""
CALLER_HEADER = "x-podslice-caller"
"""In which a cell's front says for whom it asks. Believed of nobody else."""

_NAMED = re.compile(r"([a-z][a-z0-9_-]*)=(.*)", re.DOTALL)

Asgi = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
Principals = Mapping[bytes, str]
"""Digest of each known key -> the principal that it speaks for."""
OPEN: Principals = {}
"""No keys: everyone may come in."""


def digest(key: str) -> bytes:
    """What is kept of a key: enough to know it again, not to send it."""
    return hashlib.sha256(key.encode()).digest()


def principals(keys: Iterable[str], where: str = "api_keys", known: Principals = OPEN) -> Principals:
    """Digests and principals of keys as they are written, `KEY` or `NAME=KEY`, beside those that are known already.

    Raises:
        ValueError: an entry is neither, or one key has two names. The message holds names and places, never a key.
    """
    found = dict(known)
    for place, written in enumerate(keys, 1):
        name, key = _parsed(written.strip(), f"entry {place} of {where}")
        other = found.setdefault(digest(key), name)
        if other != name:
            raise ValueError(
                f"one key has two names, {other} and {name}: entry {place} of {where}. A key speaks for one principal; "
                "give each a key of its own"
            )
    return found


def principals_from_environment(known: Principals = OPEN) -> Principals:
    """The same of PODSLICE_API_KEYS, whose keys are comma-separated. Raises ValueError."""
    keys = os.environ.get(VARIABLE, "").split(",")
    return principals((key for key in keys if key.strip()), VARIABLE, known)


def _parsed(written: str, where: str) -> tuple[str, str]:
    """Name and key. Only a key without a name may end in `=`, as base64 does; any other `=` follows a name."""
    if named := _NAMED.fullmatch(written):
        name, key = named[1], named[2].strip()
        if key.strip("="):
            return name, key
        raise ValueError(
            f"{where} is NAME= without a key behind it (an empty variable?). A key that itself ends in = needs a name "
            "in front: NAME=KEY"
        )
    unpadded = written.rstrip("=")
    if not unpadded or "=" in unpadded:
        raise ValueError(
            f"{where} must be KEY or NAME=KEY, NAME of small letters, digits, - and _, a letter first; a key that "
            "itself holds = needs a name in front"
        )
    return DEFAULT_PRINCIPAL, written


class RequireKey:
    """ASGI middleware: a request without a known key gets `refused(scope, message)`, and the application never sees it.

    To the application, `scope["podslice.principal"]` says whose key it was.
    """

    def __init__(self, app: Asgi, principals: Principals, refused: Callable[[dict[str, Any], str], Response]):
        self._app, self._principals, self._refused = app, principals, refused

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = _keys(scope)
            principal = next(filter(None, map(self._of, given)), None)
            if principal is not None:
                scope = scope | {SCOPE_PRINCIPAL: principal}
            elif scope["path"].removeprefix(scope.get("root_path", "")) not in OPEN_PATHS:
                problem = (
                    "Incorrect API key given."
                    if given
                    else "No API key given: send it in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
                )
                await self._refused(scope, problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _of(self, key: str) -> str | None:
        """Compares with every key, each in constant time, so that the time taken tells nothing about any of them."""
        offered, found = digest(key), None
        for expected, principal in self._principals.items():
            if hmac.compare_digest(offered, expected):
                found = principal
        return found


def _keys(scope: dict[str, Any]) -> list[str]:
    """The keys that a request gives, one for each header."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    scheme, _, key = headers.get(b"authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, headers.get(b"x-api-key", "").strip()) if key]
