"""The model's tokenizer and chat template, from the files beside its weights."""

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from apps.llm.engine.request import RequestError

log = logging.getLogger("podslice")


class ModelTokenizer:
    """Text to ids and back. `fast` is the tokenizers library's object, for whatever needs more."""

    def __init__(self, folder: str):
        # AutoTokenizer imports half of transformers (seconds); a tokenizer.json needs none of it.
        if (Path(folder) / "tokenizer.json").is_file():
            from transformers import PreTrainedTokenizerFast

            self._hf = PreTrainedTokenizerFast.from_pretrained(folder)
        else:
            from transformers import AutoTokenizer

            self._hf = AutoTokenizer.from_pretrained(folder)
        self.fast = self._hf.backend_tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, with the special tokens that the tokenizer puts round a text (bos, for most)."""
        return self.fast.encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.fast.decode(list(ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation up to where the assistant's next turn begins.

        Raises:
            RequestError: the model has no chat template, or its template refuses the messages.
        """
        if not self._hf.chat_template:
            raise RequestError("messages", "this model has no chat template: use /v1/completions instead")
        try:
            text = self._hf.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is the model's own program: it raises what it likes
            raise RequestError("messages", f"the model's chat template refuses these messages: {error}") from error
        return self.fast.encode(text, add_special_tokens=False).ids

    @lru_cache(maxsize=4096)  # noqa: B019 - one tokenizer for the life of its engine
    def token_text(self, token: int) -> str:
        return self.fast.decode([token], skip_special_tokens=False)

    @cached_property
    def eos_token_id(self) -> int | None:
        return self._hf.eos_token_id

    @property
    def vocab_size(self) -> int:
        return self.fast.get_vocab_size()

    def warm_up(self) -> None:
        """Compile the chat template now: the first chat should not wait for jinja2."""
        if self._hf.chat_template:
            try:
                self.chat([{"role": "user", "content": "Hello"}])
            except RequestError as error:
                log.warning("chat template: %s", error)
