"""From token ids to text that can be shown: whole characters only, nothing that a stop string may take back."""

from collections.abc import Collection, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

CONTEXT = 8  # prompt tokens that tell the decoder what the answer continues (spaces between words, mostly)


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
        self._tokenizer, self._shown = tokenizer, shown  # special tokens have no text, but for those that are shown
        self._stream = DecodeStream(ids=_context(tokenizer, prompt_ids), skip_special_tokens=True)
        self._stop, self._keep_stop = [s for s in stop if s], keep_stop
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""

    def feed(self, token: int) -> tuple[str, str | None]:
        """The text that the token lets out, and the stop string that it completes, if any."""
        text = self._step(token)
        if not self._stop:
            return text, None
        self._held += text
        found = [(at, s) for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            at, stop = min(found)
            shown, self._held = self._held[: at + len(stop) if self._keep_stop else at], ""
            return shown, stop
        keep = self._overlap()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, None

    def _step(self, token: int) -> str:
        if token in self._shown:
            return self._tokenizer.id_to_token(token) or ""
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception as error:
            if not str(error).startswith("Invalid prefix"):
                raise
            # Bytes that are no UTF-8 can change how a byte-fallback tokenizer reads those before them (so it does with
            # Llama 2's and Gemma's). Those are lost; the stream begins anew, as vLLM's does.
            self._stream = DecodeStream(skip_special_tokens=True)
            return self._stream.step(self._tokenizer, token) or ""

    def flush(self) -> str:
        """What was held back, once the answer has ended otherwise."""
        text, self._held = self._held, ""
        return text

    def _overlap(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            if any(s.startswith(self._held[-length:]) for s in self._stop):
                return length
        return 0


def _context(tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> list[int]:
    """The prompt's last tokens, from where they begin with a whole character; none if they have no such place.

    Half a character would stand as errors in the decoder's idea of what it has already given out.
    """
    for length in range(CONTEXT, 3 * CONTEXT):
        ids = list(prompt_ids[-length:])
        if "\ufffd" not in tokenizer.decode(ids):
            return ids
        if length >= len(prompt_ids):
            break
    return []
