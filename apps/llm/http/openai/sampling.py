"""The fields that completions and chat completions have in common: streaming, structured output, sampling."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from apps.llm.api import MAX_STOP_TOKENS, MAX_STOPS
from apps.llm.http.constraints import ConstrainedBody
from apps.llm.schemas.enforced import loosened
from apps.llm.text_api import SamplingParams
from apps.serving.ingress.bodies import Body, CacheSalt


class StreamOptions(Body):
    include_usage: bool | None = None


class JsonSchema(Body):
    name: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    """false: what of the schema cannot be enforced is ignored, instead of refused."""

    def constraint(self) -> dict[str, Any]:
        return loosened(self.schema_) if self.strict is False and self.schema_ else self.schema_


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """Extension, as llama.cpp has it: the schema of a `json_object`."""

    @model_validator(mode="after")
    def _has_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema is required with type json_schema")
        return self

    def constraint(self) -> dict[str, Any] | None:
        """The JSON schema to follow; {} for any JSON object, None for free text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return self.schema_ or {}
        return self.json_schema.constraint() if self.json_schema else {}


class SamplingBody(ConstrainedBody):
    """The fields that both endpoints have. The engine checks the ranges."""

    model: str | None = None
    """The served model's name. Optional, except in a cell with several published models."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    """Structured output: a JSON object, or one that follows a JSON schema."""
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    # The fields below are named as in SamplingParams:
    max_tokens: int | None = None
    """Maximum length of the answer. Default: 16 for completions; for chats, what the context allows."""
    min_tokens: int | None = None
    """Minimum length of the answer."""
    temperature: float | None = None
    """0: greedy. Default: 1."""
    top_k: int | None = None
    """Samples from the k likeliest tokens; 0: from all."""
    top_p: float | None = None
    min_p: float | None = None
    """Excludes tokens less likely than this fraction of the likeliest token's probability."""
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    """Applies to the tokens of prompt and answer; 1: no penalty."""
    logit_bias: dict[int, float] | None = None
    """Token id -> value to add to its logit."""
    n: int | None = None
    """Number of answers to each prompt."""
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    """Continues after the model's end-of-sequence token."""
    include_stop_str_in_output: bool | None = None
    priority: int | None = None
    """vLLM's: orders a caller's waiting requests, lowest first, then first come, first served. Default: 0."""
    cache_salt: CacheSalt | None = None
    """vLLM's: the prefix cache is shared only with requests of the same salt."""

    @field_validator("stream_options")
    @classmethod
    def _of_a_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("stream_options may only be given with stream: true")
        return value

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self, defaults: Mapping[str, Any], **values: Any) -> SamplingParams:
        """The engine's parameters.

        Args:
            defaults: the model's, for what the request does not name.
            values: those whose fields differ between the endpoints.
        """
        for field in SAME_NAME:
            if (value := getattr(self, field)) is not None:
                values.setdefault(field, value)
        if self.stop is not None:
            values["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.response_format is not None:
            values["json_schema"] = self.response_format.constraint()
        values |= self.constraint()
        if self.include_stop_str_in_output:
            values["include_stop_text"] = True
        return SamplingParams(**{**defaults, **values})


SAME_NAME = tuple(
    field for field in SamplingBody.model_fields if field in SamplingParams.__dataclass_fields__ and field != "stop"
)
