"""Reads a request's body, up to a limit."""

from starlette.requests import Request

MAX_BYTES = 32 * 2**20


class BodyTooLarge(ValueError):
    """The client sends more than MAX_BYTES; its message says so."""


async def read_body(request: Request) -> bytes:
    """All bytes of the body. Raises BodyTooLarge."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BYTES:
            raise BodyTooLarge(f"The request body is larger than {MAX_BYTES // 2**20} MiB.")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
