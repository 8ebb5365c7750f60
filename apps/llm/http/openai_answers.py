"""How OpenAI's endpoints write their answers, whole or as server-sent events.

A streamed token costs one small JSON string: what stays the same in every event of a request is written once.
"""

import json
import time
import uuid
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from apps.llm.api import Output, TokenLogprob

DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def embeddings(model: str, vectors: Sequence[np.ndarray], prompt_tokens: int, as_base64: bool) -> dict[str, Any]:
    """/v1/embeddings. In base64: the bytes of little-endian float32, which is what the official client asks for."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": b64encode(vector.astype("<f4").tobytes()).decode() if as_base64 else vector.tolist(),
        }
        for index, vector in enumerate(vectors)
    ]
    counts = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return {"object": "list", "data": data, "model": model, "usage": counts}


class Choice:
    """One answer of a request: what has come of it so far."""

    def __init__(self, index: int, echo: str = ""):
        self.index, self.echo = index, echo
        self.texts: list[str] = [echo] if echo else []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.started = False  # its first event is written
        self.offset = len(echo)  # characters before the next token, for legacy logprobs

    def take(self, output: Output) -> None:
        """Note an output of a whole (not streamed) answer."""
        self.texts.append(output.text)
        self.logprobs.extend(output.logprobs)
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason


class CompletionWriter:
    """/v1/completions."""

    KIND, EVENT_KIND, ID = "text_completion", "text_completion", "cmpl-"
    OPEN, CLOSE = '"text":', ""  # around an event's text

    def __init__(self, model: str, with_logprobs: bool, include_usage: bool):
        name, now = self.ID + uuid.uuid4().hex, int(time.time())
        self._head = {"id": name, "object": self.KIND, "created": now, "model": model}
        self._event = "data: " + json.dumps(self._head | {"object": self.EVENT_KIND})[:-1] + ',"choices":['
        self._end = ('],"usage":null' if include_usage else "]") + "}\n\n"
        self._with_logprobs = with_logprobs

    # -- streamed -----------------------------------------------------------------------------------------------

    def begin(self, choice: Choice) -> str:
        """What a choice's first event needs before it."""
        return self._choice_event(choice, choice.echo, (), None, None) if choice.echo else ""

    def events(self, choice: Choice, outputs: Sequence[Output]) -> str:
        """The server-sent event of a choice's news, "" if there is nothing to see yet."""
        if len(outputs) == 1:
            text, logprobs, last = outputs[0].text, outputs[0].logprobs, outputs[0]
        else:
            text, last = "".join(output.text for output in outputs), outputs[-1]
            logprobs = tuple(logprob for output in outputs for logprob in output.logprobs)
        if not text and not logprobs and last.finish_reason is None:
            return ""
        begin = ""
        if not choice.started:
            choice.started, begin = True, self.begin(choice)
        return begin + self._choice_event(choice, text, logprobs, last.finish_reason, last.stop_reason)

    def _choice_event(
        self,
        choice: Choice,
        text: str,
        logprobs: Sequence[TokenLogprob],
        finish_reason: str | None,
        stop_reason: str | int | None,
    ) -> str:
        written = json.dumps(self.logprobs(choice, logprobs)) if self._with_logprobs else "null"
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        if stop_reason is not None:
            reason += f',"stop_reason":{json.dumps(stop_reason)}'
        return (
            f'{self._event}{{"index":{choice.index},{self.OPEN}{json.dumps(text)}{self.CLOSE},'
            f'"logprobs":{written},"finish_reason":{reason}}}{self._end}'
        )

    def usage_event(self, counts: dict[str, Any]) -> str:
        return f'{self._event}],"usage":{json.dumps(counts)}}}\n\n'

    # -- whole --------------------------------------------------------------------------------------------------

    def whole(self, choices: Sequence[Choice], counts: dict[str, Any]) -> dict[str, Any]:
        return self._head | {"choices": [self._whole_choice(choice) for choice in choices], "usage": counts}

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            **self.message("".join(choice.texts)),
            "logprobs": self.logprobs(choice, choice.logprobs) if self._with_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    # -- where the endpoints differ -----------------------------------------------------------------------------

    def message(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, choice: Choice, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The legacy form: parallel lists, with each token's place in the text."""
        offsets = []
        for entry in logprobs:
            offsets.append(choice.offset)
            choice.offset += len(entry.text)
        return {
            "tokens": [entry.text for entry in logprobs],
            "token_logprobs": [entry.logprob for entry in logprobs],
            "top_logprobs": [
                {text: logprob for _, text, logprob in entry.top} | {entry.text: entry.logprob} for entry in logprobs
            ],
            "text_offset": offsets,
        }


class ChatWriter(CompletionWriter):
    """/v1/chat/completions."""

    KIND, EVENT_KIND, ID = "chat.completion", "chat.completion.chunk", "chatcmpl-"
    OPEN, CLOSE = '"delta":{"content":', "}"

    def begin(self, choice: Choice) -> str:
        delta = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return f'{self._event}{{"index":{choice.index},{delta}{self._end}'

    def message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(self, choice: Choice, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {
            "content": [
                _chat_token(entry.text, entry.logprob)
                | {"top_logprobs": [_chat_token(text, logprob) for _, text, logprob in entry.top]}
                for entry in logprobs
            ],
            "refusal": None,
        }


def _chat_token(text: str, logprob: float) -> dict[str, Any]:
    # A token that is half a character has no text of its own, and its bytes cannot be told from it.
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}
