"""The model's tokenizer and chat template, from the files beside its weights; a byte tokenizer if there are none."""

import inspect
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.llm.api import RequestError
from apps.llm.chat.conversation import PromptEnding
from apps.llm.text.tokenizer.bounded_templates import bound_templates, steps
from apps.llm.text.tokenizer.detokenizer import Detokenizer
from apps.llm.text.tokenizer.files import chat_template_beside, without_tokenizer_json
from apps.llm.text.tokenizer.limits import TokenLimit
from apps.llm.text.tokenizer.longest_token import longest_token
from apps.llm.text.tokenizer.spelling import Spelling, byte_letters
from apps.serving.errors import panics_as, shortened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("podslice")

# A text is tokenized by the thread that asks for it: the library's own threads are shared by all callers.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SPECIAL = ("<s>", "</s>")
FIRST_BYTE = len(SPECIAL)
WITHHELD = frozenset({"vocab_file", "merges_file", "tokenizer_file", "tokenizer_object", "name_or_path"})
"""Settings that are paths of the server, or no settings."""
PLAIN_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)


PIECE = 2**17
"""Characters of a long text that are tokenized at a time, to see whether it is too long."""
BYTES_A_TOKEN = 6
"""A text with more bytes for each token that fits is looked at in pieces first: most such texts are too long, and a
text takes some 300 bytes of memory for each of its tokens."""


def _go_on() -> None:
    """What is asked between two pieces of work: raises an error to end it."""


class ModelTokenizer:
    """Converts text to token ids and back. `fast` is the tokenizers library's own object.

    Args:
        vocab_size: of the model, where the tokenizer may have tokens that the model has not: a text with one of them is
            refused. Gemma 3's text models, and some that were trained further with a new token, are published so.
    """

    def __init__(self, hf: "PreTrainedTokenizerBase", vocab_size: int | None = None):
        self._hf = hf
        self.fast = hf.backend_tokenizer
        self.eos_token_ids: tuple[int, ...] = ()
        """The tokens that end the model's answers."""
        self._last = max(self.fast.get_vocab().values(), default=0)
        self._vocab_size = vocab_size if vocab_size is not None and vocab_size <= self._last else None
        if self._vocab_size is not None:
            log.warning(
                "the tokenizer has tokens up to %d, the model %d of them: a text with another one is refused",
                self._last,
                vocab_size,
            )

    @classmethod
    def of_folder(cls, folder: str, vocab_size: int | None = None) -> "ModelTokenizer":
        """Raises CheckpointError if the folder has no tokenizer that can be read."""
        # AutoTokenizer imports half of transformers (seconds); a tokenizer.json needs none of it.
        if (Path(folder) / "tokenizer.json").is_file():
            from transformers import PreTrainedTokenizerFast

            hf = PreTrainedTokenizerFast.from_pretrained(folder)
        else:
            hf = without_tokenizer_json(folder)
        hf.chat_template = hf.chat_template or chat_template_beside(folder)
        return cls(hf, vocab_size)

    @classmethod
    def of_bytes(cls, vocab_size: int) -> "ModelTokenizer":
        """A byte tokenizer for a model without its own: 0 begins a text, 1 ends it, 2 to 257 are the bytes of UTF-8.

        No text encodes to a higher id, but random weights can sample one; it decodes to its number, as in ` t31999`.
        """
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        letters = byte_letters()
        space = letters[ord(" ")]
        words = [f"{space}t{token}" for token in range(FIRST_BYTE + 256, vocab_size)]
        vocab = {word: token for token, word in enumerate([*SPECIAL, *letters, *words])}
        tokenizer = Tokenizer(models.BPE(vocab, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        begin, end = SPECIAL
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, 0)])
        hf = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end)
        hf.chat_template = PLAIN_CHAT
        return cls(hf)

    def encode(
        self, text: str, limit: TokenLimit | None = None, special: bool = True, going: Callable[[], None] = _go_on
    ) -> list[int]:
        """Token ids of a prompt, with the special tokens that the tokenizer adds (bos, for most). Releases the GIL.

        Args:
            limit: a longer text is refused, mostly before all of it is tokenized.
            going: called between two pieces of a long text; what it raises ends the work.

        Raises:
            PromptTooLong: the text has more tokens than the limit.
            RequestError: the tokenizer fails on it (field: the limit's, or `prompt`).
        """
        field = "prompt" if limit is None else limit.field
        with panics_as(lambda said: RequestError(field, f"{field}: the model's tokenizer fails on this text: {said}")):
            if limit is not None and len(text) > limit.tokens:
                self._look_at(text, limit, going)
            encoding = self._encoding(text, special)
            if limit is not None:
                limit.check(len(encoding))
            ids: list[int] = encoding.ids
        if self._vocab_size is not None and max(ids, default=0) >= self._vocab_size:
            token = next(token for token in ids if token >= self._vocab_size)
            known = f"the model's tokens end at {self._vocab_size - 1}"
            word = shortened(repr(self.fast.id_to_token(token)), 100)
            raise RequestError(field, f"{field}: the text has {word}, token {token} of the tokenizer, but {known}")
        return ids

    def encode_suffix(
        self, text: str, limit: TokenLimit | None = None, going: Callable[[], None] = _go_on
    ) -> list[int]:
        """Token ids of a text that continues another: without special tokens, and no token spans the boundary."""
        return self.encode(text, limit, False, going)

    def _encoding(self, text: str, special: bool) -> Any:
        # `encode` holds the GIL from its beginning to its end; this does not, and leaves offsets out.
        return self.fast.encode_batch_fast([text], add_special_tokens=special)[0]

    def _look_at(self, text: str, limit: TokenLimit, going: Callable[[], None]) -> None:
        """Raises PromptTooLong for a text that is far too long, after as little work as possible."""
        if self.longest_token is None:
            return
        if len(text) > limit.tokens * self.longest_token:
            raise limit.exceeded(f"{len(text)} characters, more than that many tokens can have")
        if len(text) * 4 <= limit.tokens * BYTES_A_TOKEN or len(text.encode()) <= limit.tokens * BYTES_A_TOKEN:
            return
        # A cut changes the tokens around it, and so no piece's count by more than a few.
        count = 0
        for start in range(0, len(text), PIECE):
            going()
            count += len(self._encoding(text[start : start + PIECE], False))
            if count > 2 * limit.tokens:
                raise limit.exceeded(f"more than {count} tokens" if start + PIECE < len(text) else f"{count} tokens")

    @cached_property
    def longest_token(self) -> int | None:
        """The most characters of a text that can be one token; None if that is not known."""
        return longest_token(self.fast)

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of token ids; with `special`, special tokens are included. Releases the GIL."""
        with panics_as(lambda said: RequestError("tokens", f"tokens: the model's tokenizer fails on them: {said}")):
            return self.fast.decode_batch([list(ids)], skip_special_tokens=not special)[0]

    @property
    def eos_token_id(self) -> int | None:
        """The token that its own settings name as the end of a text; None if they name none that it has."""
        return None if self._hf.eos_token is None else self.fast.token_to_id(str(self._hf.eos_token))

    @property
    def chat_template(self) -> str:
        """The template's Jinja source, joined if there are several; empty if there is none."""
        template = self._hf.chat_template or ""
        return template if isinstance(template, str) else "\n".join(template.values())

    def info(self) -> dict[str, Any]:
        """The settings of tokenizer_config.json, with the class and the chat template; no paths. JSON values only."""
        settings = {name: value for name, value in self._hf.init_kwargs.items() if name not in WITHHELD}
        given = json.loads(json.dumps(settings, default=lambda token: getattr(token, "content", str(token))))
        template = {"chat_template": self.chat_template} if self.chat_template else {}
        return given | {"tokenizer_class": type(self._hf).__name__} | template

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        fields: Mapping[str, Any] | None = None,
        ending: PromptEnding = "turn",
    ) -> str:
        """Render a conversation, by default up to the start of the assistant's next turn, with special tokens as text.

        Args:
            tools: in OpenAI's format.
            fields: further variables of the chat template.
            ending: see `ChatRequest`.

        Raises:
            RequestError: the model has no chat template, or its template refuses the messages.
        """
        if not self._hf.chat_template:
            raise RequestError("messages", "this model has no chat template: use /v1/completions instead")
        fields = fields or {}
        if taken := fields.keys() & _arguments_of_rendering():
            name = min(taken)
            raise RequestError("chat_template_kwargs", f"chat_template_kwargs: {name} cannot be set by a request")
        bound_templates()
        from transformers.utils.chat_template_utils import render_jinja_template

        # As `apply_chat_template`, but that leaves out content that is None, for which DeepSeek's templates ask.
        variables: Mapping[str, Any] = {**self._hf.special_tokens_map, **fields}
        try:
            with steps():
                template = self._hf.get_chat_template(None, tools)
                chats = [list(messages)]
                rendered, _ = render_jinja_template(
                    chats,
                    tools,
                    chat_template=template,
                    add_generation_prompt=ending == "turn",
                    continue_final_message=ending == "message",
                    **variables,
                )
                return rendered[0]
        except Exception as error:  # a template is the model's own program and can raise anything
            raise RequestError("messages", f"the model's chat template rejects these messages: {error}") from error

    def shown(self, ids: Sequence[int]) -> list[int]:
        """The characters of a text that each of its tokens completes."""
        text = Detokenizer(self.fast, (), (), keep_stop=False)
        return [len(text.feed(token)[0]) for token in ids]

    @cached_property
    def _spelling(self) -> Spelling:
        return Spelling(self.fast)

    def token_text(self, token: int) -> str:
        """Its text within a text, with the space that it may begin with; U+FFFD for a part of a character."""
        return self._spelling.of(token)[0]

    def token_bytes(self, token: int) -> bytes:
        """The bytes of its text, or its own ones if it is a part of a character."""
        return self._spelling.of(token)[1]

    def warm_up(self) -> None:
        """Compile the chat template, so that the first chat does not wait for jinja2."""
        _ = self.longest_token
        if self._hf.chat_template:
            try:
                self.encode_suffix(self.render([{"role": "user", "content": "Hello"}]))
            except RequestError as error:
                log.warning("chat template: %s", error)


@cache
def _arguments_of_rendering() -> frozenset[str]:
    """Arguments of transformers' own rendering functions, which are not template variables."""
    from transformers import PreTrainedTokenizerBase
    from transformers.utils.chat_template_utils import render_jinja_template

    functions = (PreTrainedTokenizerBase.apply_chat_template, render_jinja_template)
    return frozenset(name for f in functions for name in inspect.signature(f).parameters) | {"messages"}
