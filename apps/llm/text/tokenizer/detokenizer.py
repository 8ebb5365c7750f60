"""Turns token ids into text that is safe to stream: whole characters, and nothing that a stop string could remove."""

from collections.abc import Collection, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from apps.llm.chat.stops import StopStrings

CONTEXT = 8  # prompt tokens that the decoder needs as context (for spaces between words, mostly)


class Detokenizer:
    """The text of one answer, token by token."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        stop: Sequence[str],
        keep_stop: bool,
        shown: Collection[int] = (),
    ):
        self._tokenizer, self._shown = tokenizer, shown  # special tokens have no text, except these
        self._stream = DecodeStream(ids=_context(tokenizer, prompt_ids), skip_special_tokens=True)
        self._stops = StopStrings(stop, keep_stop)
        self.length = 0
        """Characters of the tokens so far, with those that are held back."""

    def feed(self, token: int) -> tuple[str, str | None]:
        """The text that is safe to stream after this token, and the stop string that it completes, if any."""
        text = self._step(token)
        self.length += len(text)
        return self._stops.feed(text), self._stops.found

    def _step(self, token: int) -> str:
        if token in self._shown:
            return self._tokenizer.id_to_token(token) or ""
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception as error:
            if not str(error).startswith("Invalid prefix"):
                raise
            # Invalid UTF-8 can change how a byte-fallback tokenizer (Llama 2's, Gemma's) decodes the bytes before it.
            # Those are lost; restart the stream, as vLLM does.
            self._stream = DecodeStream(skip_special_tokens=True)
            return self._stream.step(self._tokenizer, token) or ""

    def flush(self) -> str:
        """The text still held back, once the answer has ended without a stop string."""
        return self._stops.rest()


def _context(tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> list[int]:
    """The prompt's last tokens, starting at a whole character; empty if no such start is found.

    Half a character would leave replacement characters in the text that the decoder believes it has emitted.
    """
    for length in range(CONTEXT, 3 * CONTEXT):
        ids = list(prompt_ids[-length:])
        if "\ufffd" not in tokenizer.decode(ids):
            return ids
        if length >= len(prompt_ids):
            break
    return []
