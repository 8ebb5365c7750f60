"""Uploads as multipart/form-data, streamed to storage: a file is never held in memory.

(Starlette's own form parser would spool the whole file to the local disk first.)
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from functools import partial
from typing import IO, Any, TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from apps.serving.ingress.dialects.openai_errors import OpenAIError

# It warns of each malformed form, which the client is told; a server's log could be filled from outside.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

T = TypeVar("T")

MAX_FIELD_BYTES = 2**16
MAX_PARTS = 32
FORM_BYTES = 2**20
"""Maximum size of the form without its file."""


class Form:
    """Incremental parser of a form with `fields` and one file, named `file`. Raises OpenAIError on a bad form.

    Args:
        content_type: the request's Content-Type header.
    """

    def __init__(self, content_type: str):
        kind, options = parse_options_header(content_type.encode("latin-1", "replace"))
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            message = "The request must be multipart/form-data with a file and a purpose."
            raise OpenAIError(400, message, None, "invalid_content_type")
        self.fields: dict[str, bytes] = {}
        self.filename: str | None = None
        """The file's name; None until its part has begun."""
        self._file: list[bytes] = []
        self._parts, self._ended = 0, False
        self._header, self._value, self._disposition = b"", b"", b""
        self._field: str | None = None
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_part_data": self._data,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers,
                    "on_end": self._whole,
                },
            )
        except FormParserError as error:
            raise _unreadable(str(error)) from None

    def feed(self, data: bytes) -> list[bytes]:
        """Parses a piece of the body; returns the file's bytes in it."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _unreadable(str(error)) from None
        pieces, self._file = self._file, []
        return pieces

    def finish(self) -> str:
        """Checks that the form is complete; returns the file's name."""
        if not self._ended:
            raise _unreadable("it ends before its last boundary")
        if self.filename is None:
            raise OpenAIError(400, "file: a file with a file name is required", "file", "missing_required_parameter")
        return self.filename

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _unreadable(f"it has more than {MAX_PARTS} parts")
        self._disposition = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if name is None:
            raise _unreadable("a part has no name")
        if b"filename" not in options:
            self._field = name.decode("utf-8", "replace")
            self.fields[self._field] = b""
            return
        self._field = None
        if name != b"file" or self.filename is not None:
            raise OpenAIError(400, "file: upload exactly one file, in the field file", "file", "invalid_value")
        self.filename = options[b"filename"].decode("utf-8", "replace")

    def _data(self, data: bytes, start: int, end: int) -> None:
        name = self._field
        if name is None:
            self._file.append(data[start:end])
            return
        if len(self.fields[name]) + end - start > MAX_FIELD_BYTES:
            raise OpenAIError(400, f"{name}: larger than {MAX_FIELD_BYTES // 2**10} KiB", name, "invalid_value")
        self.fields[name] += data[start:end]

    def _whole(self) -> None:
        self._ended = True


@asynccontextmanager
async def opened_in_thread(
    file: Callable[[], AbstractContextManager[IO[bytes]]],
) -> AsyncIterator[Callable[[bytes], Awaitable[object]]]:
    """Opens a file; yields its `write`, in a thread. Closes the file after the last write, however the block ends."""
    pool, stack = ThreadPoolExecutor(1, "podslice-upload"), ExitStack()

    async def run(call: Callable[..., T], *arguments: Any) -> T:
        # Shielded: a call handed to the thread completes, in order, even if the client disconnects.
        return await asyncio.shield(asyncio.wrap_future(pool.submit(call, *arguments)))

    try:
        yield partial(run, (await run(lambda: stack.enter_context(file()))).write)
    except BaseException as error:
        await run(stack.__exit__, type(error), error, error.__traceback__)
        raise
    else:
        await run(stack.close)
    finally:
        pool.shutdown(wait=False)


def too_large(most: int) -> OpenAIError:
    return OpenAIError(413, f"file: larger than {most:,} bytes", "file", "file_too_large")


def declared(headers: Mapping[str, str]) -> int:
    """The Content-Length; 0 if there is none."""
    length = headers.get("content-length", "")
    return int(length[:20]) if length.isdecimal() else 0


def check_length(headers: Mapping[str, str], most: int) -> None:
    """Raises OpenAIError if the Content-Length is too large."""
    if declared(headers) > most + FORM_BYTES:
        raise too_large(most)


def _unreadable(why: str) -> OpenAIError:
    return OpenAIError(400, f"The form cannot be parsed: {why}", None, "invalid_form")
