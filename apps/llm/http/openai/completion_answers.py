"""Answers of /v1/completions, as one JSON object or as server-sent events; those of chats build on them.

The constant parts of a request's events are serialized once, so a streamed token costs one small JSON string.
"""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Raw
from starlette.responses import Response

from apps.llm.http.answering import Source, Writer
from apps.llm.http.large_json import LargeJSON, in_slices
from apps.llm.http.openai.prompt_scores import prompt_logprobs, prompt_scores
from apps.llm.text_api import Output, PieceReader, PromptToken, TokenLogprob
from apps.serving.ingress.dialects.openai_errors import of_stream

DONE = b"data: [DONE]\n\n"


class Choice:
    """One of a request's answers, as generated so far."""

    def __init__(
        self,
        index: int,
        echo: str = "",
        reader: PieceReader | None = None,
        prompt: Sequence[PromptToken] = (),
    ):
        self.index, self.echo, self.reader = index, echo, reader  # reader None: the answer is only text
        self.prompt = prompt  # empty: the prompt's log probabilities were not requested
        self.texts: list[str] = [echo] if echo else []
        self.logprobs: list[TokenLogprob] = []
        self.token_ids: list[int] = []  # if asked for; of a stream, those that no event has told yet
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.started = self.told_prompt = False  # whether its first event, and its prompt's ids are written

    def size(self) -> int:
        """About how many characters and numbers it has."""
        a_token = 1 + len(self.logprobs[0].top) if self.logprobs else 0
        return sum(map(len, self.texts)) + len(self.logprobs) * a_token + len(self.prompt) + len(self.token_ids)

    def take(self, output: Output) -> None:
        """Adds an output to an answer that is not streamed."""
        self.texts.append(output.text)
        self.logprobs.extend(output.logprobs)
        if output.finish_reason is not None:
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason


class PromptCounts(NamedTuple):
    """Token counts of a request's prompts."""

    prompt_tokens: int
    cached_tokens: int


def choices(
    prompts: int,
    n: int,
    echoes: Sequence[str] = (),
    reader: Callable[[], PieceReader | None] = lambda: None,
    read: Sequence[Sequence[PromptToken]] = (),
) -> list[Choice]:
    """A request's choices: `n` for each prompt. `echoes`: the prompts' texts, if the answers repeat them."""
    return [
        Choice(i, echoes[i // n] if echoes else "", reader(), read[i // n] if read else ()) for i in range(prompts * n)
    ]


class CompletionWriter(Writer):
    """/v1/completions.

    Args:
        prompts: the prompts' token ids, if the client wants them and those of the answers (vLLM's `return_token_ids`).
    """

    KIND, EVENT_KIND, ID = "text_completion", "text_completion", "cmpl-"
    OPEN, CLOSE = '"text":', ""  # around an event's text

    def __init__(
        self,
        model: str,
        counts: Source | PromptCounts,
        choices: Sequence[Choice],
        with_logprobs: bool,
        include_usage: bool = False,
        prompt_logprobs: int | None = None,
        prompts: Sequence[Sequence[int]] | None = None,
    ):
        name, now = self.ID + uuid.uuid4().hex, int(time.time())
        self._head = {"id": name, "object": self.KIND, "created": now, "model": model}
        self._event = "data: " + json.dumps(self._head | {"object": self.EVENT_KIND})[:-1] + ',"choices":['
        self._end = ('],"usage":null' if include_usage else "]") + "}\n\n"
        self._counts, self._choices, self.tokens = counts, choices, 0
        self._with_logprobs, self._prompt_logprobs = with_logprobs, prompt_logprobs
        self._include_usage, self._prompts = include_usage, prompts

    def usage(self) -> dict[str, Any]:
        prompt_tokens = self._counts.prompt_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": prompt_tokens + self.tokens,
            "prompt_tokens_details": {"cached_tokens": self._counts.cached_tokens},
        }

    # -- streamed -----------------------------------------------------------------------------------------------

    def events(self, outputs: list[Output]) -> bytes:
        self._keep_ids(outputs)
        if len(outputs) == 1:
            self.tokens += len(outputs[0].token_ids)
            return self.news(self._choices[outputs[0].index], outputs).encode()
        by_choice: dict[int, list[Output]] = {}
        for output in outputs:
            self.tokens += len(output.token_ids)
            by_choice.setdefault(output.index, []).append(output)
        return "".join(self.news(self._choices[index], news) for index, news in by_choice.items()).encode()

    def last(self) -> bytes:
        if not self._include_usage:
            return DONE
        return f'{self._event}],"usage":{json.dumps(self.usage())}}}\n\n'.encode() + DONE

    def failed(self, error: Exception) -> bytes:
        return of_stream(error).event() + DONE

    def begin(self, choice: Choice) -> str:
        """The event, if any, before a choice's first one."""
        if not self._echoes_logprobs(choice):
            return self._text_event(choice, choice.echo, (), None, None) if choice.echo else ""
        text, written = json.dumps(choice.echo), json.dumps(prompt_scores(choice.prompt, choice.echo))
        event = f'"index":{choice.index},"text":{text},"logprobs":{written},"finish_reason":null'
        return f"{self._event}{{{event}}}{self._end}"

    def news(self, choice: Choice, outputs: Sequence[Output]) -> str:
        """The server-sent events for a choice's new outputs; "" if there is nothing to show yet."""
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
        return begin + self._text_event(choice, text, logprobs, last.finish_reason, last.stop_reason)

    def _text_event(self, choice: Choice, text: str, *rest: Any) -> str:
        return self._choice_event(choice, f"{self.OPEN}{json.dumps(text)}{self.CLOSE}", *rest)

    def _choice_event(
        self,
        choice: Choice,
        news: str,
        logprobs: Sequence[TokenLogprob],
        finish_reason: str | None,
        stop_reason: str | int | None,
    ) -> str:
        if self._prompts is not None:
            news += self._told_ids(choice)
        written = json.dumps(self.logprobs(choice, logprobs)) if self._with_logprobs else "null"
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        if stop_reason is not None:
            reason += f',"stop_reason":{json.dumps(stop_reason)}'
        return (
            f'{self._event}{{"index":{choice.index},{news},"logprobs":{written},"finish_reason":{reason}}}{self._end}'
        )

    def _keep_ids(self, outputs: list[Output]) -> None:
        for output in () if self._prompts is None else outputs:
            self._choices[output.index].token_ids.extend(output.token_ids)

    def _told_ids(self, choice: Choice) -> str:
        """An event's field for the choice's tokens since the last one; beside it in the first, those of its prompt."""
        assert self._prompts is not None
        prompt = "" if choice.told_prompt else f',"prompt_token_ids":{json.dumps(self.prompt_ids(choice))}'
        told, choice.token_ids, choice.told_prompt = choice.token_ids, [], True
        return f'{prompt},"token_ids":{json.dumps(told)}'

    def prompt_ids(self, choice: Choice) -> list[int]:
        """The ids of the choice's prompt."""
        assert self._prompts is not None
        return list(self._prompts[choice.index * len(self._prompts) // len(self._choices)])

    # -- whole --------------------------------------------------------------------------------------------------

    def take(self, outputs: list[Output]) -> None:
        self._keep_ids(outputs)
        for output in outputs:
            self.tokens += len(output.token_ids)
            self._choices[output.index].take(output)

    def whole(self) -> dict[str, Any]:
        written = [self._whole_choice(choice) for choice in self._choices]
        return self._head | {"choices": written, "usage": self.usage(), **self.ids()}

    def size(self) -> int:
        return sum(choice.size() for choice in self._choices)

    def response(self) -> Response:
        written = [Raw(in_slices(self._whole_choice(choice))) for choice in self._choices]
        return LargeJSON(self._head | {"choices": written, "usage": self.usage(), **self.ids()})

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        logprobs = self.logprobs(choice, choice.logprobs) if self._with_logprobs else None
        if logprobs is not None and self._echoes_logprobs(choice):
            echoed = prompt_scores(choice.prompt, choice.echo)
            logprobs = {name: echoed[name] + of_answer for name, of_answer in logprobs.items()}
        whole = {
            "index": choice.index,
            **self.message(choice),
            "logprobs": logprobs,
            "finish_reason": finish_reason(choice, choice.finish_reason),
            "stop_reason": choice.stop_reason,
        }
        if self._prompt_logprobs is not None:
            whole["prompt_logprobs"] = prompt_logprobs(choice.prompt, self._prompt_logprobs)
        if self._prompts is not None:
            whole |= self.ids_of(choice)
        return whole

    def _echoes_logprobs(self, choice: Choice) -> bool:
        return self._with_logprobs and bool(choice.echo and choice.prompt)

    # -- where the endpoints differ -----------------------------------------------------------------------------

    def message(self, choice: Choice) -> dict[str, Any]:
        return {"text": "".join(choice.texts)}

    def ids(self) -> dict[str, Any]:
        """A whole answer's fields for `return_token_ids`, beside its choices."""
        return {}

    def ids_of(self, choice: Choice) -> dict[str, Any]:
        """A whole choice's."""
        return {"token_ids": choice.token_ids, "prompt_token_ids": self.prompt_ids(choice)}

    def logprobs(self, choice: Choice, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The legacy format: parallel lists, with each token's offset in the text."""
        return {
            "tokens": [entry.text for entry in logprobs],
            "token_logprobs": [entry.logprob for entry in logprobs],
            "top_logprobs": [
                {text: logprob for _, text, logprob in entry.top} | {entry.text: entry.logprob} for entry in logprobs
            ],
            "text_offset": [len(choice.echo) + entry.offset for entry in logprobs],
        }


def finish_reason(choice: Choice, reason: str | None) -> str | None:
    """A choice's reason as OpenAI has it: an answer with calls has ended for them."""
    called = choice.reader is not None and choice.reader.called
    return "tool_calls" if called and reason == "stop" else reason
