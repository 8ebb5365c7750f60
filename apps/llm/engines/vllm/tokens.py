"""Requests and outputs of a token engine, in the words of vLLM's `/v1/completions` with `return_token_ids`.

Source: vLLM's `entrypoints/openai/completion/protocol.py`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from apps.llm.api import (
    FinishReason,
    Grammar,
    RequestError,
    Sampling,
    TokenLogprobs,
    TokenOutput,
    TokenRequest,
    TokenScore,
)

NAMED = "token_id:"
"""Before a token's id where vLLM's answers have its text: `return_tokens_as_token_ids`."""
LONGEST_SALT = 1024
NEVER = -100.0
"""A bias with which no token is sampled: the lowest that vLLM takes."""
BACKGROUND = 2**20
FINISHED: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


def check(request: TokenRequest) -> None:
    """Raises RequestError for what vLLM can't be asked for in tokens."""
    sampling = request.sampling
    if request.pooling is not None:
        raise RequestError("model", "this model's engine, vLLM, is started for answers: it makes no embeddings")
    if sampling is not None and any(len(phrase) > 1 for phrase in sampling.banned):
        raise RequestError("bad_words", "bad_words: this model's engine, vLLM, bans single tokens alone")


def completion(request: TokenRequest, ends: tuple[int, ...], seeded: bool) -> dict[str, Any]:
    """The body of the request for an answer.

    Args:
        ends: the tokens that end an answer.
        seeded: vLLM takes seeds; on TPUs its 0.29 does not.
    """
    sampling = request.sampling
    assert sampling is not None
    tokens = [*request.prompt_ids, *request.answer_ids]
    body = _common(request, tokens) | {
        "max_tokens": request.limit - len(tokens),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": [*sampling.stop_token_ids, *(() if sampling.ignore_eos else ends)],
        "min_tokens": max(0, sampling.min_tokens - len(request.answer_ids)),
        "skip_special_tokens": False,
    }
    if seeded and sampling.temperature > 0:
        # Another stream of draws for each beginning, so that what follows does not repeat what was drawn before.
        body["seed"] = sampling.seed + (len(request.answer_ids) << 31)
    if sampling.logprobs is not None:
        body["logprobs"] = sampling.logprobs
    if bias := _bias(sampling):
        body["logit_bias"] = bias
    if sampling.allowed_token_ids is not None:
        body["allowed_token_ids"] = list(sampling.allowed_token_ids)
    if request.grammar is not None:
        body["structured_outputs"] = {"grammar": lark_of(request.grammar)}
    return body


def scoring(request: TokenRequest) -> dict[str, Any]:
    """The body of the request for a suffix's scores."""
    assert request.suffix is not None
    tokens = [*request.prompt_ids, *request.suffix]
    return _common(request, tokens) | {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}


def _common(request: TokenRequest, tokens: list[int]) -> dict[str, Any]:
    salt = salt_of(request.cache_salts)
    urgency = 2 * request.priority - request.moved + BACKGROUND * request.caller.background
    return {
        "prompt": tokens,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "priority": urgency,
        **({"cache_salt": salt} if salt else {}),
    }


def _bias(sampling: Sampling) -> dict[str, float]:
    never = {str(phrase[0]): NEVER for phrase in sampling.banned}
    return {str(token): max(NEVER, min(-NEVER, bias)) for token, bias in sampling.logit_bias.items()} | never


def lark_of(grammar: Grammar) -> str:
    """A grammar as text in Lark, which is all that vLLM takes. A lone schema is a JSON object here."""
    if not grammar.lark.startswith("{"):
        return grammar.lark
    (schema,) = json.loads(grammar.lark)["grammars"]
    return f"start: %json {json.dumps(schema['json_schema'])}"


def salt_of(salts: tuple[str, ...]) -> str:
    """A request's salts as vLLM's one, from which `salts_of` has them back; a longer one than it takes is a digest."""
    if not any(salts):
        return ""
    text = json.dumps(salts)
    if len(text) <= LONGEST_SALT:
        return text
    return hashlib.sha256(text.encode()).hexdigest()


def salts_of(salt: str) -> tuple[str, ...] | None:
    """See `salt_of`; None of a digest."""
    if not salt.startswith("["):
        return None
    return tuple(json.loads(salt))


@dataclass
class CompletionReader:
    """Makes outputs of the events of one answer's stream."""

    request: TokenRequest
    entered_ns: int = 0
    _last: TokenOutput | None = None  # waits for what vLLM says of the cache, after it

    def read(self, event: Mapping[str, Any], now_ns: int) -> TokenOutput | None:
        """The output that an event of the stream makes, if it makes one."""
        if (error := event.get("error")) is not None:
            return failure(self.request, error)
        if not event.get("choices"):
            return self._end(event.get("usage") or {})
        self.entered_ns = self.entered_ns or now_ns
        (choice,) = event["choices"]
        reason = choice.get("finish_reason")
        output = TokenOutput(
            request=self.request.id,
            token_ids=tuple(choice.get("token_ids") or ()),
            logprobs=_logprobs(choice.get("logprobs"), self.request),
            finish_reason=FINISHED.get(reason) if reason else None,
            entered_ns=self.entered_ns,
        )
        if reason is None:
            return output
        if reason not in FINISHED:
            return failure(self.request, {"message": f"vLLM ended it: {reason}"}, of_answer=False)
        self._last = output
        return None

    def _end(self, usage: Mapping[str, Any]) -> TokenOutput | None:
        last, self._last = self._last, None
        if last is None:
            return None
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return msgspec.structs.replace(last, cached_tokens=min(cached, len(self.request.prompt_ids)))

    def end(self) -> TokenOutput:
        """The last output, once the stream has ended."""
        if self._last is not None:
            return self._last
        return failure(self.request, {"message": "vLLM ended the answer's stream before its end"}, of_answer=False)


def scored(request: TokenRequest, answer: Mapping[str, Any]) -> TokenOutput:
    """The output that the answer to `scoring` makes."""
    assert request.suffix is not None
    (choice,) = answer["choices"]
    found = choice["prompt_logprobs"][len(request.prompt_ids) :]
    scores = []
    for token, entry in zip(request.suffix, found, strict=True):
        own = entry[str(token)]
        likeliest, best = min(entry.items(), key=lambda item: int(item[1]["rank"]))
        scores.append(TokenScore(own["logprob"], own["rank"], int(likeliest), best["logprob"]))
    return TokenOutput(request=request.id, scores=tuple(scores), finish_reason="stop")


def failure(request: TokenRequest, error: Mapping[str, Any], of_answer: bool = True) -> TokenOutput:
    """The last output of a request that vLLM refuses or fails."""
    code = error.get("code")
    refused = of_answer and isinstance(code, int) and 400 <= code < 500
    field = request.grammar.field if refused and request.grammar is not None else None
    return TokenOutput(
        request=request.id,
        finish_reason="error",
        error=f"vLLM: {error.get('message') or error}",
        of_answer=refused,
        at_fault=field,
    )


def _logprobs(said: Mapping[str, Any] | None, request: TokenRequest) -> tuple[TokenLogprobs, ...]:
    if not said or request.sampling is None or request.sampling.logprobs is None:
        return ()
    most = request.sampling.logprobs
    found = []
    for logprob, top in zip(said["token_logprobs"], said["top_logprobs"], strict=True):
        ranked = sorted(((value, int(name.removeprefix(NAMED))) for name, value in (top or {}).items()), reverse=True)
        ids, values = [token for _, token in ranked[:most]], [value for value, _ in ranked[:most]]
        found.append(TokenLogprobs(logprob, tuple(ids), tuple(values)))
    return tuple(found)
