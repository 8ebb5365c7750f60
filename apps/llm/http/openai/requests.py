"""Bodies of OpenAI's completions, chat completions and embeddings, with vLLM's additional sampling fields.

Types are strict, as OpenAI's are ("0.5" is not a number); null means absent; unknown fields are ignored.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator

from apps.llm.api import MAX_MESSAGES, MAX_STOPS, MAX_TOOLS, RequestError
from apps.llm.chat.conversation import ChatRequest, Conversation, PromptEnding, effort_fields
from apps.llm.http.constraints import RefusedInChats
from apps.llm.http.openai.messages import Message, ToolBody, ToolChoice, tool_use
from apps.llm.http.openai.sampling import SamplingBody
from apps.llm.text.tokenizer.limits import NO_DEFAULTS, default_limit
from apps.llm.text_api import SamplingParams
from apps.serving.ingress.bodies import Body
from apps.serving.ingress.dialects.openai_errors import OpenAIError

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for completions; a chat's answer may fill the context
MAX_PROMPTS = 256
MAX_INPUTS = 2048  # OpenAI's limit for embeddings

Texts = str | list[int] | list[str] | list[list[int]]
"""One text or several, each a string or token ids."""


UNIONS = {
    "input": "input must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
    "prompt": "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
    "stop": f"stop must be a string or a list of at most {MAX_STOPS} strings",
    "tool_choice": 'tool_choice must be none, auto, required or {"type": "function", "function": {"name": ...}}',
}
"""Error for a field of several types, in place of one error per type."""


def each(texts: Texts) -> list[str | list[int]]:
    """The texts as a list, also if there is only one."""
    one = isinstance(texts, str) or not texts or isinstance(texts[0], int)
    return cast(list[str | list[int]], [texts] if one else texts)


class CompletionBody(SamplingBody):
    prompt: Texts
    logprobs: int | None = None
    """Returns log probabilities of the chosen tokens and of this many likeliest ones."""
    echo: bool | None = None
    """Repeats the prompt before the answer; with `logprobs`, also with the log probabilities of its tokens and of the
    likeliest token at each position. `max_tokens` 0 returns only the prompt."""
    prompt_logprobs: int | None = None
    """vLLM's: 0 for the log probabilities of the prompt's tokens, 1 for those of the likeliest tokens too."""
    add_special_tokens: bool | None = None
    """false leaves out the special tokens that a prompt begins with. Default: true."""
    suffix: str | None = None
    """Not supported."""
    best_of: int | None = None
    """Not supported: ask for n answers and choose."""

    @field_validator("prompt")
    @classmethod
    def _some_prompts(cls, value: Any) -> Any:
        if len(each(value)) > MAX_PROMPTS:
            raise ValueError(f"a request may have at most {MAX_PROMPTS} prompts")
        return value

    @field_validator("echo", "suffix", "best_of")
    @classmethod
    def _offered(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name == "suffix" and value:
            raise ValueError("suffix is not supported: this server continues a text but does not insert into it")
        if info.field_name == "best_of" and value not in (None, info.data.get("n") or 1):
            raise ValueError("best_of is not supported: ask for n answers and choose")
        return value

    @field_validator("prompt_logprobs")
    @classmethod
    def _known(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value not in (None, 0, 1):
            raise ValueError("must be 0 or 1: only the likeliest token is known at each position of a prompt")
        if value is not None and info.data.get("stream"):
            raise ValueError("prompt_logprobs cannot be streamed: use stream: false")
        return value

    @model_validator(mode="after")
    def _one_answer(self) -> "CompletionBody":
        if self.reads_prompt and (self.n or 1) > 1:
            raise OpenAIError(400, "n must be 1 with the prompt's log probabilities", "n", "invalid_value")
        return self

    @property
    def reads_prompt(self) -> bool:
        """Whether the prompt's log probabilities are requested."""
        return self.prompt_logprobs is not None or bool(self.echo and self.logprobs is not None)

    @property
    def only_prompt(self) -> bool:
        """Whether only the prompt is requested, without an answer."""
        return self.max_tokens == 0 and bool(self.echo or self.reads_prompt)

    @property
    def names(self) -> dict[str, str]:
        """The engine's name of a field -> the client's, where they differ."""
        return {"response_format": self.constraint_field, "tokens": "prompt"}

    def params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """The engine's parameters; `defaults` are the model's."""
        if self.max_tokens is not None:
            return self.sampling(defaults, logprobs=self.logprobs)
        default = max(COMPLETION_MAX_TOKENS, self.min_tokens or 0)
        return self.sampling(defaults, logprobs=self.logprobs, max_tokens=default, within_context=True)


class ChatBody(RefusedInChats, SamplingBody):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = None
    """OpenAI's newer name of `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)] | None = None
    """Functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """none, auto (the default), required, or the tool that must be called, whose arguments must follow its schema."""
    parallel_tool_calls: bool | None = None
    """false: at most one call in an answer."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """Passed to the chat template, with `enable_thinking`: false for `none`, else true."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Extension: more variables for the chat template, such as `enable_thinking`."""
    continue_final_message: bool | None = None
    """vLLM's: the answer goes on with the last message, which is the assistant's. It has only what is new."""
    add_generation_prompt: bool | None = None
    """vLLM's: false leaves out the beginning of the assistant's turn."""

    @field_validator("top_logprobs")
    @classmethod
    def _offered(cls, value: Any, info: ValidationInfo) -> Any:
        if value and not info.data.get("logprobs"):
            raise ValueError("top_logprobs may only be given with logprobs: true")
        return value

    @property
    def names(self) -> dict[str, str]:
        """The engine's name of a field -> the client's, where they differ."""
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        names = {"response_format": self.constraint_field, "prompt": "messages"}
        return names | {"logprobs": "top_logprobs", "max_tokens": limit}

    def request(self) -> ChatRequest:
        """The chat. Raises RequestError if messages and tools are inconsistent."""
        conversation = Conversation()
        for i, message in enumerate(self.messages):
            message.join(conversation, f"messages[{i}]")
        use = tool_use(self.tools or [], self.tool_choice, self.parallel_tool_calls)
        fields = effort_fields(self.reasoning_effort) | (self.chat_template_kwargs or {})
        return ChatRequest(conversation.messages, use, fields, self._ending(), conversation.images)

    def _ending(self) -> PromptEnding:
        """How the prompt ends. Raises RequestError for fields that contradict each other."""
        field = "continue_final_message"
        if not self.continue_final_message:
            return "nothing" if self.add_generation_prompt is False else "turn"
        if self.add_generation_prompt:
            raise RequestError(field, f"{field} and add_generation_prompt cannot both be true")
        if self.messages[-1].role != "assistant" or self.messages[-1].tool_calls:
            raise RequestError(field, f"{field}: the last message must be a text of the assistant")
        return "message"

    def params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """The engine's parameters; `defaults` are the model's."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        values = {"max_tokens": limit} if limit is not None else default_limit(defaults, self.min_tokens)
        return self.sampling(defaults, logprobs=(self.top_logprobs or 0) if self.logprobs else None, **values)


class EmbeddingBody(Body):
    input: Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    """Must be the model's own size, if given."""
    pooling: Literal["mean", "last"] | None = None
    """Extension: the tokens whose hidden states make the vector. Default: the model's own choice, else mean."""

    @field_validator("input")
    @classmethod
    def _some_inputs(cls, value: Texts) -> Texts:
        if len(each(value)) > MAX_INPUTS:
            raise ValueError(f"a request may have at most {MAX_INPUTS} inputs")
        return value
