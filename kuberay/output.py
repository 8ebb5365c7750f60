"""Output of commands that run a service: what they print must not end them when nobody can read it any more."""

import io
import os
import sys
from contextlib import suppress
from typing import Any


class _Descriptor(io.RawIOBase):
    """An output that takes everything: what cannot be written, to a closed pipe, terminal or full disk, is dropped."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: "memoryview") -> int:  # type: ignore[override]
        with suppress(OSError):
            return os.write(self._descriptor, data)
        return len(data)


def outlive_readers() -> None:
    """Let this process go on when standard output or standard error is closed, or their reader has gone.

    A server ends by a signal, never because `| head` or a terminal has.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was started with `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
            continue
        with suppress(OSError):  # a test's, which is no file
            raw: Any = _Descriptor(stream.fileno())  # type checkers ask for more than a RawIOBase
            setattr(
                sys, name, io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, "replace", line_buffering=True)
            )
