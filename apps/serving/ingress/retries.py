"""Retries that join the answer which they ask for again.

A client names its request in the header `Idempotency-Key`, or `X-Request-Id`, and sends it again when its connection
broke. While the first one is being answered, and for a minute after, the second one gets the same bytes from the
beginning: nothing is computed, counted or charged twice. Each process knows the requests that it took itself.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.serving.ingress.api_keys import principal_of
from apps.serving.ingress.bodies import BodyRefused, with_body
from apps.serving.ingress.dialects.openai_errors import OpenAIError, from_unread

KEY, REQUEST_ID = "idempotency-key", "x-request-id"
NAMED_BY = "podslice-named-by"
"""HAProxy sends it with an X-Request-Id that came with the request: Serve gives one to every other request, which no
client can send again."""
MOST_CHARACTERS = 255
LEFT_S = {KEY: 10.0, REQUEST_ID: 2.0}
"""How long an answer goes on that nobody reads any more, by the header that names it. OpenAI's clients try again after
half a second, and then after up to eight. Gateways give an id to every request: those of clients who left for good are
not to hold their places for long."""
KEPT_S = 60.0
"""How long a complete answer is there for a client that lost its end."""
MOST_KEPT = 64 * 2**20
"""Bytes of all answers that a process keeps."""
MOST_OF_ONE = 16 * 2**20
"""A longer answer goes to those who read it already, as fast as they read it."""
EACH = 1024
"""Bytes that an answer takes besides its body."""
SCOPE_ANSWER = "podslice.answer"
"""Key of a request's `SharedAnswer` in its ASGI scope."""

Name = tuple[str, ...]
"""Who asks, where, and what the client calls the request."""


def will_not_be_repeated(scope: Mapping[str, Any]) -> None:
    """Say that the answer of this scope failed after its status was sent: who asks again is to get another one."""
    if (answer := scope.get(SCOPE_ANSWER)) is not None:
        answer.failed = True


class SharedAnswer:
    """A response that is being made: its messages so far, and those who read them."""

    def __init__(self, digest: bytes):
        """`digest`: of the request's body."""
        self.digest = digest
        self.failed = False
        """Whether nobody else is to get it."""
        self.size = EACH
        self.task: asyncio.Task[None] | None = None
        self._messages: list[Message] = []
        self._dropped = 0
        """Messages that all readers have, and that are no longer kept."""
        self._readers: dict[object, int] = {}
        """How many messages each has."""
        self._changed = asyncio.Event()

    @property
    def read(self) -> bool:
        """Whether anybody reads it."""
        return bool(self._readers)

    async def add(self, message: Message) -> None:
        """The next message. Of an answer that is not kept as a whole, only once its readers have all before it."""
        if message["type"] == "http.response.start" and not 200 <= message["status"] < 300:
            self.failed = True
        self._messages.append(message)
        self.size += len(message.get("body", b""))
        self._change()
        while self.size > MOST_OF_ONE and any(has < self._count for has in self._readers.values()):
            await self._changed.wait()
        if self.size > MOST_OF_ONE and self._readers:
            self._dropped = self._count
            self._messages.clear()

    async def send_to(self, send: Send, *, joined: bool) -> None:
        """Everything from the beginning, and what follows, to its end. Raises what its making raised."""
        assert self.task is not None
        reader = object()
        self._readers[reader] = 0
        try:
            while True:
                while (has := self._readers[reader]) < self._count:
                    message = self._messages[has - self._dropped]
                    if message["type"] == "http.response.start":  # copied, as Serve adds its own id to what is sent
                        replayed = [(b"idempotent-replayed", b"true")] if joined else []
                        message = {**message, "headers": [*message["headers"], *replayed]}
                    await send(message)
                    self._readers[reader] = has + 1
                    if self.size > MOST_OF_ONE:
                        self._change()
                if self.task.done():
                    await self.task
                    return
                await self._changed.wait()
        finally:
            del self._readers[reader]
            self._change()

    def end(self) -> None:
        """Its making has ended."""
        self._change()

    @property
    def _count(self) -> int:
        return self._dropped + len(self._messages)

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class JoinsRetries:
    """ASGI middleware, inside `RequireKey`: answers a request that its client names once, however often it is sent."""

    def __init__(self, app: ASGIApp, refused: Callable[[Scope, OpenAIError], Response]):
        self._app, self._refused = app, refused
        self._answers: dict[Name, SharedAnswer] = {}
        self._complete: dict[Name, SharedAnswer] = {}
        """Those of them that have ended, the oldest first."""
        self._held = 0
        """Bytes of these."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = _named(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        if named is None:
            await self._app(scope, receive, send)
            return
        header, name = named
        if len(name[-1]) > MOST_CHARACTERS:
            too_long = f"The header {header} has {len(name[-1])} characters; at most {MOST_CHARACTERS} are allowed."
            await self._refused(scope, OpenAIError(400, too_long, header))(scope, receive, send)
            return

        async def answered(scope: Scope, receive: Receive, send: Send) -> None:
            first = await receive()
            if first.get("more_body"):  # too large to be answered
                await self._app(scope, _then(first, receive), send)
            else:
                await self._answer(name, scope, first, send)

        def unread(error: BodyRefused) -> Response:
            return self._refused(scope, from_unread(error))

        await with_body(answered, scope, receive, send, unread)

    async def _answer(self, name: Name, scope: Scope, request: Message, send: Send) -> None:
        digest = hashlib.sha256(request.get("body", b"")).digest()
        answer = self._answers.get(name)
        joined = answer is not None
        if answer is None:
            answer = self._begun(name, digest, scope, request)
        elif answer.digest != digest:
            await self._of_another(name, scope, request, send)
            return
        assert answer.task is not None
        try:
            await answer.send_to(send, joined=joined)
        finally:
            if not answer.task.done() and not answer.read:
                asyncio.get_running_loop().call_later(LEFT_S[name[-2]], self._leave, name, answer)

    async def _of_another(self, name: Name, scope: Scope, request: Message, send: Send) -> None:
        """Tracing ids may come twice; a key must not, as the draft standard of the header has it."""
        if name[-2] == KEY:
            reused = f"The Idempotency-Key {name[-1]!r} was used for another request: send a new one with each request."
            await self._refused(scope, OpenAIError(422, reused, "Idempotency-Key"))(scope, _nothing, send)
        else:
            await self._app(scope, _then(request, _nothing), send)

    def _begun(self, name: Name, digest: bytes, scope: Scope, request: Message) -> SharedAnswer:
        answer = self._answers[name] = SharedAnswer(digest)

        async def add(message: Message) -> None:
            await answer.add(message)
            if answer.failed or answer.size > MOST_OF_ONE:
                self._forget(name, answer)

        async def made() -> None:
            await self._app({**scope, SCOPE_ANSWER: answer}, _then(request, _nothing), add)

        # A task of its own: Serve cancels a request whose client has left.
        answer.task = asyncio.create_task(made())
        answer.task.add_done_callback(lambda task: self._ended(name, answer, task))
        return answer

    def _ended(self, name: Name, answer: SharedAnswer, task: asyncio.Task[None]) -> None:
        answer.end()
        if task.cancelled() or task.exception() is not None:
            self._forget(name, answer)
        elif self._answers.get(name) is answer:
            self._complete[name] = answer
            self._held += answer.size
            while self._held > MOST_KEPT:
                self._forget(*next(iter(self._complete.items())))
            task.get_loop().call_later(KEPT_S, self._forget, name, answer)

    def _leave(self, name: Name, answer: SharedAnswer) -> None:
        assert answer.task is not None
        if not answer.read and not answer.task.done():
            self._forget(name, answer)
            answer.task.cancel()

    def _forget(self, name: Name, answer: SharedAnswer) -> None:
        if self._answers.get(name) is answer:
            del self._answers[name]
            if self._complete.pop(name, None) is not None:
                self._held -= answer.size


def _named(scope: Scope) -> tuple[str, Name] | None:
    """The header by which the client names its request, and the name for all who may ask."""
    headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
    for header in (KEY, REQUEST_ID) if NAMED_BY.encode() in headers else (KEY,):
        if said := headers.get(header.encode()):
            principal = principal_of(scope)
            client = scope.get("client") or ("",)
            who = f"key {principal}" if principal is not None else f"address {client[0]}"
            return header, (who, scope["path"], scope["query_string"].decode("latin-1"), header, said)
    return None


def _then(first: Message, receive: Receive) -> Receive:
    waiting = [first]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received


async def _nothing() -> Message:
    """What a request hears after its body: nothing, as its task is cancelled when nobody waits for it."""
    await asyncio.Event().wait()
    raise AssertionError
