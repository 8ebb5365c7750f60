"""The text of one answer, token by token: what is shown, and where a stop string ends it."""

import logging
from collections.abc import Sequence

from apps.llm.api import FinishReason, TokenLogprobs, TokenOutput
from apps.llm.text.tokenizer.detokenizer import Detokenizer
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from apps.llm.text_api import Output, SamplingParams, TokenLogprob

log = logging.getLogger("podslice")


class AnswerText:
    """Turns one answer's tokens into text.

    Args:
        index: which of the request's answers.
        eos_token_ids: the model's; they have no text.
        answer_ids: tokens that were shown before.
    """

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        tokenizer: ModelTokenizer,
        eos_token_ids: Sequence[int],
        answer_ids: Sequence[int] = (),
    ):
        self._index, self._tokenizer, self._logprobs = index, tokenizer, params.logprobs
        self._reader = params.reader() if params.reader is not None and params.stop else None
        stop = () if self._reader is not None else params.stop
        self._text = Detokenizer(tokenizer.fast, prompt_ids, stop, params.include_stop_text, params.shown_tokens)
        self._silent = frozenset(() if params.ignore_eos else eos_token_ids)
        """Tokens without text. A stop token may be the text that ends the answer."""
        if not params.include_stop_text:
            self._silent |= frozenset(params.stop_token_ids)
        self._stops = frozenset(params.stop_token_ids) - frozenset(() if params.ignore_eos else eos_token_ids)
        if answer_ids:
            self.take(TokenOutput(request=-1, token_ids=tuple(answer_ids)))

    def take(self, output: TokenOutput) -> Output:
        """The text of new tokens. Raises what the tokenizer or the reader fails with."""
        text, stop, logprobs = "", None, list[TokenLogprob]()
        taken, reason = output.token_ids, output.finish_reason
        for i, token in enumerate(output.token_ids):
            offset = self._text.length
            if token not in self._silent:
                piece, stop = self._text.feed(token)
                if self._reader is not None:
                    self._reader.feed(piece)
                    stop = self._reader.stopped
                text += piece
            if output.logprobs:
                logprobs.append(self._logprob(token, output.logprobs[i], offset))
            if stop is not None:
                taken, reason = output.token_ids[: i + 1], "stop"
                break
        stop_reason: str | int | None = stop
        if reason in ("stop", "length") and stop is None:
            text += self._text.flush()
            stop_reason = taken[-1] if reason == "stop" and taken and taken[-1] in self._stops else None
        return Output(
            self._index,
            text,
            taken,
            tuple(logprobs),
            reason,
            stop_reason,
            output.error,
            output.of_answer,
            output.at_fault,
        )

    def _logprob(self, token: int, given: TokenLogprobs, offset: int) -> TokenLogprob:
        words, ids = self._tokenizer, given.top_ids
        top = tuple((t, words.token_text(t), p) for t, p in zip(ids, given.top_logprobs))
        data = tuple(map(words.token_bytes, (token, *ids)))
        return TokenLogprob(token, words.token_text(token), given.logprob, top, data, offset)


def failed(index: int, error: BaseException) -> Output:
    """The last output of an answer whose own text failed, by a library's panic or any other error."""
    log.error("an answer failed", exc_info=error)
    reason: FinishReason = "error"
    problem = f"the answer failed: {type(error).__name__}: {error}"
    return Output(index, "", (), finish_reason=reason, error=problem, of_answer=True)
