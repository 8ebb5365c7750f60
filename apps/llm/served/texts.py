"""The texts of requests become token ids, and back: short ones at once, long ones in threads beside the event loop.

All texts of a request count together. Before a long one is tokenized, its caller's limits are checked and charged.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from apps.llm.api import CALLER, RequestError, TokenScore
from apps.llm.chat.conversation import ChatRequest
from apps.llm.text.aside import FairThreads, Going
from apps.llm.text.tokenizer.limits import TokenLimit
from apps.llm.text_api import PromptToken

if TYPE_CHECKING:
    from apps.llm.chat.model_format import Turn
    from apps.llm.text import Engine

T = TypeVar("T")
Prompt = str | Sequence[int]

LONG_TEXT = 8_000
"""A request whose texts are longer, in characters, is tokenized off the event loop: it takes milliseconds."""
CHARACTERS_A_TOKEN = 4
"""Of ordinary text, to charge for a text before it is tokenized."""
MOST_COUNTED = 2**18
"""Most tokens of a text that is only counted or spelt out, where the model's context is shorter."""


class RequestTexts:
    """Tokenizes what requests send, for the engine of one model. Requests belong to the current task's CALLER."""

    def __init__(self, engine: "Engine"):
        self._engine, self._threads = engine, FairThreads()

    async def prompts(
        self, prompts: Sequence[Prompt], limits: Sequence[TokenLimit] = (), special: bool = True
    ) -> list[Sequence[int]]:
        """Token ids of a request's prompts; those that are ids already are only counted.

        Args:
            limits: of each prompt; by default, what the engine can hold.

        Raises:
            PromptTooLong: a prompt has more tokens than fit.
            QueueFull, LimitReached: the request would not be admitted, so nothing is tokenized for it.
        """
        limits = limits or [self._engine.prompts.limit("prompt")] * len(prompts)
        encode = self._engine.tokenizer.encode

        def work(going: Going) -> list[Sequence[int]]:
            found: list[Sequence[int]] = []
            for prompt, limit in zip(prompts, limits, strict=True):
                if isinstance(prompt, str):
                    going()
                    found.append(encode(prompt, limit, special, going))
                else:
                    limit.check(len(prompt))
                    found.append(prompt)
            return found

        return await self._admitted(sum(len(prompt) for prompt in prompts if isinstance(prompt, str)), work)

    async def chat(self, request: ChatRequest) -> "tuple[list[int], Turn]":
        """A chat's prompt, and the turn that reads its answers; see `Engine.chat`."""
        limit = self._engine.prompts.limit("prompt")
        return await self._admitted(_size(request), lambda going: self._engine.chat(request, limit, going))

    async def counted(self, text: str | ChatRequest, special: bool = True) -> list[int]:
        """Token ids of a text, or of a chat's prompt, that is only counted: it may exceed the context."""
        limit = self._counting("prompt")
        if isinstance(text, str):
            encode = self._engine.tokenizer.encode
            return await self._aside(len(text), lambda going: encode(text, limit, special, going))
        return await self._aside(_size(text), lambda going: self._engine.chat(text, limit, going)[0])

    async def decoded(self, token_ids: Sequence[int], special: bool) -> str:
        """The text of token ids. Raises RequestError (field `tokens`) if there are too many, or an unknown one."""
        limit = self._counting("tokens")
        if len(token_ids) > limit.tokens:
            raise RequestError("tokens", f"tokens: there are {len(token_ids)}; one call takes {limit.tokens}")
        ids, decode = self._engine.prompts.checked("tokens", token_ids), self._engine.tokenizer.decode
        return await self._aside(len(ids), lambda _: decode(ids, special))

    async def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The tokens' spelling in the vocabulary."""
        name = self._engine.tokenizer.fast.id_to_token
        return await self._aside(len(token_ids), lambda _: [name(token) or "" for token in token_ids])

    async def scored(self, prompts: Sequence[Sequence[int]], scores: Sequence[Sequence[TokenScore]]) -> Any:
        """The tokens of each prompt, with the scores of all but its first."""
        return await self._aside(sum(map(len, prompts)), lambda _: list(map(self._prompt_tokens, prompts, scores)))

    async def asked(self, size: int, read: Callable[[], T]) -> T:
        """What a request asks for, where that can take as long to read as a text of this size."""
        return await self._aside(size, lambda _: read())

    async def written(self, size: int, write: Callable[[], T]) -> T:
        """A large answer, written aside: it waits for a thread, but is not refused once it is there.

        Args:
            size: about how many characters and numbers it has.
        """
        if size <= LONG_TEXT:
            return write()
        return await self._threads.run(CALLER.get(), lambda _: write(), refused=False)

    def _prompt_tokens(self, prompt: Sequence[int], scores: Sequence[TokenScore]) -> list[PromptToken]:
        tokenizer = self._engine.tokenizer
        return [
            PromptToken(
                token,
                tokenizer.token_text(token),
                shown,
                score,
                tokenizer.token_text(score.likeliest) if score else "",
            )
            for token, shown, score in zip(prompt, tokenizer.shown(prompt), [None, *scores], strict=True)
        ]

    def _counting(self, field: str) -> TokenLimit:
        return TokenLimit(max(MOST_COUNTED, self._engine.max_model_len), field, holder="one call")

    async def _admitted(self, length: int, work: Callable[[Going], T]) -> T:
        """The result of work on texts of a request that will be queued. Raises what its admission would."""
        admission, caller = self._engine.admission, CALLER.get()
        if length <= LONG_TEXT:
            admission.check(caller)
            return work(_nobody_leaves)
        with admission.preparing(caller, length // CHARACTERS_A_TOKEN):
            return await self._threads.run(caller, work)

    async def _aside(self, length: int, work: Callable[[Going], T]) -> T:
        return await self._threads.run(CALLER.get(), work) if length > LONG_TEXT else work(_nobody_leaves)


def _nobody_leaves() -> None:
    """On the event loop nothing is cancelled."""


def _size(request: ChatRequest) -> int:
    """About how many characters a chat's prompt has."""
    written = sum(20 + len(str(value)) for message in request.messages for value in message.values())
    written += sum(len(str(value)) for value in request.template_fields.values())
    written += len(request.images) * 2 * LONG_TEXT  # opening one takes milliseconds, too
    return written + sum(len(str(tool.parameters)) + len(tool.description or "") + 50 for tool in request.tools.tools)
