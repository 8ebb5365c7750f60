"""Starts and ends the processes of `child`."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from apps.llm.engine.grammar import child

START_S = 120.0
"""Loading the tokenizer may take this long."""
BLOCK = 1 << 20
"""Bytes of unread answers at which the process waits: a mask of the largest vocabulary has 64 KiB."""


@dataclass(frozen=True)
class TokenizerFile:
    """What the processes' tokenizer is made of.

    Args:
        text: gives the content of its tokenizer.json.
        vocab_size: of the model, and of the masks.
        tokens: that it has, at least as many.
        eos: the tokens that end an answer.
    """

    text: Callable[[], str]
    vocab_size: int
    tokens: int
    eos: tuple[int, ...]


class Process:
    """A forked process."""

    def __init__(self, id: int, first: "First", reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._id, self._first, self._reader, self.writer = id, first, reader, writer
        self.reading: asyncio.Task[None] | None = None
        """Who reads its answers."""

    def sender(self) -> int:
        """A new descriptor of its socket, to send tokens from another thread."""
        return os.dup(self.writer.get_extra_info("socket").fileno())

    async def answer(self) -> tuple[int, int, bytes]:
        """A matcher's number, what became of it, and what follows. Raises IncompleteReadError when it has ended."""
        number, state, length = child.REPLY.unpack(await self._reader.readexactly(child.REPLY.size))
        return number, state, await self._reader.readexactly(length)

    def end(self) -> None:
        """Kill it. Harmless when it has ended."""
        self._first.kill(self._id)
        self.writer.close()


class First:
    """The first process, which has the tokenizer and forks the others."""

    def __init__(self, process: "subprocess.Popen[bytes]", control: socket.socket):
        self._process, self._control = process, control

    @classmethod
    def start(cls, tokenizer: TokenizerFile) -> "First":
        """Start it; takes seconds with a large vocabulary. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile() as file:
            file.write(tokenizer.text().encode())
            file.seek(0)
            numbers = [file.fileno(), tokenizer.vocab_size, tokenizer.tokens, *tokenizer.eos]
            process = subprocess.Popen(
                [sys.executable, "-P", child.__file__, *map(str, numbers)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                pass_fds=[file.fileno()],
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )
        ours.settimeout(START_S)
        if not ours.recv(16):
            raise OSError(f"the process for grammars did not start: it ended with {process.wait()}")
        return cls(process, ours)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, work: socket.socket) -> int:
        """Fork a process that serves this socket. Returns its id. Raises OSError."""
        socket.send_fds(self._control, [b"fork"], [work.fileno()])
        answer = self._control.recv(16)
        if not answer:
            raise OSError("the process for grammars has ended")
        return int(answer)

    def close(self) -> None:
        """End it, and with it those that it has forked."""
        self._control.close()
        self._process.wait()

    def kill(self, id: int) -> None:
        with suppress(OSError):  # it has ended, and so have all others
            self._control.send(b"kill %d" % id)


class Processes:
    """Forks processes that have a tokenizer. Starts the first when one is first needed, and again if it has died."""

    def __init__(self, tokenizer: TokenizerFile):
        self._tokenizer = tokenizer
        self._first: First | None = None
        self._starting = asyncio.Lock()

    async def fork(self) -> Process:
        """A new process. Raises OSError."""
        async with self._starting:
            first = self._first
            if first is None or not first.alive:
                first = self._first = await asyncio.to_thread(First.start, self._tokenizer)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                id = first.fork(theirs)
            except OSError:
                ours.close()
                raise
        try:
            return Process(id, first, *await asyncio.open_unix_connection(sock=ours, limit=BLOCK))
        except BaseException:  # cancelled, say
            first.kill(id)
            ours.close()
            raise

    def close(self) -> None:
        """End all processes."""
        if self._first is not None:
            self._first.close()
