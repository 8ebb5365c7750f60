"""Processes for grammars that are not surely cheap: they are compiled and followed there; see `child`.

A grammar of a caller has one process, which serves all of the caller's answers that follow it. Of each caller one
grammar is compiled at a time, so no caller's schemas keep those of another waiting. A request whose client leaves ends
its process; so does one whose compiling, or a mask, takes too long or too much memory.

An asyncio loop in a thread of its own runs all of this. The engine's thread only sends tokens, and looks whether the
mask is there: no step waits for it.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from apps.llm.api import QueueFull, RequestError
from apps.llm.engine.grammar import child
from apps.llm.engine.grammar.processes import Process, Processes, TokenizerFile
from apps.llm.engine.grammar.remote_matcher import MASK_S, RemoteGrammar, RemoteMatcher, one_line
from apps.llm.schemas.enforced import explained

PLACES = 32
"""For grammars that have a process; one caller may have half of them. A large grammar takes several places."""
PLACE_MIB = 32
"""What a grammar has in a place once it is compiled."""
COMPILING = 4
"""Grammars that are compiled at a time, each for another caller."""
COMPILE_CPU_S = 3.0
COMPILE_S = 10.0
"""Compiling may take this long, by the processor's clock and by the wall's."""
MEMORY = 256 << 20
"""Bytes that compiling may take; following the grammar, a quarter of them more."""
WAITING_S = 15.0
"""A caller waits this long for a place."""
WAITING = 256
"""Most requests of a caller that wait for one."""
IDLE_S = 60.0
"""A process that nobody uses is kept this long, for the next request with its grammar."""


@dataclass(frozen=True)
class Task:
    """A grammar to compile.

    Args:
        parts: grammars of its schemas, to find which of them is at fault.
        fields: of these, and last of the grammar as a whole.
        suspect: the field to name if compiling takes too much.
        limits: of llguidance's parser.
    """

    grammar: str
    parts: Sequence[str]
    fields: Sequence[str]
    suspect: str
    limits: Mapping[str, int | bool]

    def refused(self, part: int | None, problem: str) -> RequestError:
        field = self.fields[-1 if part is None else part]
        said = explained(one_line(problem))
        return RequestError(field, f"{field}: {_what(field)} cannot be followed: {said}")

    def too_complex(self) -> RequestError:
        field = self.suspect
        limit = f"{COMPILE_CPU_S:.0f} seconds or {MEMORY >> 20} MiB"
        return RequestError(field, f"{field}: {_what(field)} is too complex: compiling it takes over {limit}")


def _what(field: str) -> str:
    """What a field has: a schema, or what it is named after (`guided_regex`)."""
    return "it" if field.endswith(("regex", "choice", "grammar")) else "the JSON schema"


Key = tuple[Hashable, str]
"""A caller and a grammar."""


class GrammarPool:
    """Compiles grammars for one tokenizer. Starts its first process when it is first needed."""

    def __init__(self, tokenizer: TokenizerFile):
        self._processes = Processes(tokenizer)
        self._grammars: dict[Key, RemoteGrammar] = {}  # the least recently used first
        self._underway: list[Hashable] = []  # the callers of those that are being compiled
        self._compiling: dict[Hashable, asyncio.Lock] = {}
        self._waiting = Counter[Hashable]()
        self._at_once = asyncio.Semaphore(COMPILING)
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def matchers(self, task: Task, caller: Hashable, count: int) -> Future[Sequence[RemoteMatcher]]:
        """Matchers for the answers to a request. Cancelling the future ends what is compiled for it.

        Raises (when the result is read):
            RequestError: the grammar is refused, or too complex.
            QueueFull: no place was free for too long.
        """
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="podslice-grammars", daemon=True).start()
                self._watching = asyncio.run_coroutine_threadsafe(self._watch(), self._loop)
        return asyncio.run_coroutine_threadsafe(self._matchers(task, caller, count), self._loop)

    def close(self) -> None:
        """End all processes."""
        self._processes.close()

    async def _matchers(self, task: Task, caller: Hashable, count: int) -> Sequence[RemoteMatcher]:
        key = caller, task.grammar
        if self._waiting[caller] >= WAITING:
            raise QueueFull(f"{WAITING} of your requests wait for a process that compiles their schema")
        self._waiting[caller] += 1
        mine = self._compiling.setdefault(caller, asyncio.Lock())
        try:
            while key not in self._grammars:
                async with _entered(mine):
                    if key not in self._grammars:
                        await self._compile(task, key)
            grammar = self._grammars[key] = self._grammars.pop(key)  # the last used now
            return [grammar.matcher() for _ in range(count)]
        finally:
            self._waiting[caller] -= 1
            if not self._waiting[caller]:
                del self._waiting[caller], self._compiling[caller]

    async def _compile(self, task: Task, key: Key) -> None:
        await self._find_place(key[0])
        self._underway.append(key[0])
        try:
            async with _entered(self._at_once):
                self._grammars[key] = await self._compiled(task, key)
        finally:
            self._underway.remove(key[0])

    async def _find_place(self, caller: Hashable) -> None:
        """Wait until the caller may have one more grammar. Ends those that nobody uses to make room."""
        until = time.monotonic() + WAITING_S
        while True:
            own = {key: grammar for key, grammar in self._grammars.items() if key[0] == caller}
            if sum(grammar.places for grammar in own.values()) >= PLACES // 2:
                crowd, whose = own, "your other requests"
            elif sum(grammar.places for grammar in self._grammars.values()) + len(self._underway) >= PLACES:
                crowd, whose = self._grammars, "other requests"
            else:
                return
            idle = next((key for key in crowd if self._grammars[key].idle_since is not None), None)
            if idle is not None:
                self._grammars.pop(idle).end()
            elif time.monotonic() > until:
                raise QueueFull(f"the processes for schemas as complex as this one are busy with {whose}")
            else:
                await asyncio.sleep(0.05)

    async def _compiled(self, task: Task, key: Key) -> RemoteGrammar:
        process = await self._processes.fork()
        try:
            asked = {"grammar": task.grammar, "parts": list(task.parts), "limits": dict(task.limits)}
            text = json.dumps(asked | {"memory": MEMORY, "cpu_s": COMPILE_CPU_S}).encode()
            process.writer.write(child.LENGTH.pack(len(text)) + text)
            async with asyncio.timeout(COMPILE_S):
                grown, state, payload = await process.answer()
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            process.end()
            raise task.too_complex() from None
        except BaseException:
            process.end()
            raise
        if state == child.FAILED:
            process.end()
            part, problem = json.loads(payload)
            raise task.refused(part, problem)
        grammar = RemoteGrammar(process.sender(), np.frombuffer(payload, np.uint32), process.end)
        grammar.places = 1 + grown // PLACE_MIB
        process.reading = asyncio.create_task(self._read(process, grammar, key))
        return grammar

    async def _read(self, process: Process, grammar: RemoteGrammar, key: Key) -> None:
        """Hand the process's answers to the grammar, until it ends."""
        try:
            while True:
                grammar.heard(*await process.answer())
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            if self._grammars.get(key) is grammar:
                del self._grammars[key]
            limit = f"{MASK_S:.0f} seconds or {MEMORY >> 20} MiB"
            grammar.fail(f"the JSON schema became too complex: the tokens that may come next took over {limit}")

    async def _watch(self) -> None:
        """End the processes that are late, and those that nobody has used for long."""
        while True:
            await asyncio.sleep(0.5)
            for key, grammar in list(self._grammars.items()):
                idle = grammar.idle_since
                if grammar.late or (idle is not None and time.monotonic() - idle > IDLE_S):
                    del self._grammars[key]
                    grammar.end()


@asynccontextmanager
async def _entered(lock: asyncio.Lock | asyncio.Semaphore) -> AsyncIterator[None]:
    """Hold a lock. Raises QueueFull after waiting for long."""
    try:
        async with asyncio.timeout(WAITING_S):
            await lock.acquire()
    except TimeoutError:
        raise QueueFull("schemas as complex as this one are being compiled for other requests") from None
    try:
        yield
    finally:
        lock.release()
