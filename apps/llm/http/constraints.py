"""Fields of vLLM's and others' APIs that hold an answer to something, in OpenAI's bodies.

What is not done is refused by name: an answer that is not what its request has asked for must not look as if it were.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from apps.llm.api import MAX_WORDS, RequestError
from apps.llm.chat.grammar import choice_rule, grammar_rule, regex_rule
from apps.llm.text_api import Pattern
from apps.serving.ingress.bodies import Body
from apps.serving.ingress.dialects.openai_errors import OpenAIError

MAX_CHOICES = 1000
MOST_GRAMMAR = 100_000
"""Characters."""
READING = 20
"""Characters of a text that are read as soon as one of a grammar."""
Written = Annotated[str, Field(max_length=MOST_GRAMMAR)]
Choices = Annotated[list[Annotated[Written, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES)]
JsonSchemaOrText = dict[str, Any] | str
NOT_DONE = "is not supported"


class StructuredOutputs(Body):
    """vLLM's: what the answer must be. One of these."""

    json_: JsonSchemaOrText | None = Field(None, alias="json")
    """A JSON schema, as an object or as JSON text."""
    regex: Written | None = None
    """A regular expression for the whole answer."""
    choice: Choices | None = None
    """The answer is one of these texts."""
    grammar: Written | None = None
    """A grammar in GBNF, whose first rule is `root`, or in llguidance's dialect of Lark, where it is `start`."""
    json_object: bool | None = None
    """true: any JSON object."""
    structural_tag: Any = None
    """Not supported."""
    whitespace_pattern: Any = None
    """Not supported."""
    disable_any_whitespace: bool | None = None
    """Only false."""
    disable_additional_properties: bool | None = None
    """Only false."""

    @field_validator("structural_tag", "whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")
    @classmethod
    def _done(cls, value: Any) -> Any:
        if value:
            raise ValueError(NOT_DONE)
        return value


class ConstrainedBody(Body):
    """The fields that both of OpenAI's endpoints have."""

    structured_outputs: StructuredOutputs | None = None
    """vLLM's: what the answer must be, in place of `response_format`."""
    guided_json: JsonSchemaOrText | None = None
    """An older name of `structured_outputs.json`."""
    guided_regex: Written | None = None
    """An older name of `structured_outputs.regex`."""
    guided_choice: Choices | None = None
    """An older name of `structured_outputs.choice`."""
    guided_grammar: Written | None = None
    """An older name of `structured_outputs.grammar`."""
    bad_words: Annotated[list[str], Field(max_length=MAX_WORDS)] | None = None
    """vLLM's: words that the answer does not have, by their tokens."""
    allowed_token_ids: list[int] | None = None
    """vLLM's: the answer has no other tokens."""
    guided_whitespace_pattern: Any = None
    """Not supported."""
    truncate_prompt_tokens: int | None = None
    """Not supported: shorten the prompt."""
    use_beam_search: bool | None = None
    """Not supported."""
    length_penalty: float | None = None
    """Only 1: there is no beam search."""
    logits_processors: Any = None
    """Not supported."""
    skip_special_tokens: bool | None = None
    """Only true: special tokens have no text."""
    return_token_ids: bool | None = None
    """vLLM's: answer with the token ids of prompt and answer too."""
    return_tokens_as_token_ids: bool | None = None
    """Not supported."""

    neutral: ClassVar[dict[str, Sequence[Any]]] = {"length_penalty": (1.0,), "skip_special_tokens": (True,)}
    """Values that ask for nothing, besides null, false and nothing at all."""

    @field_validator(
        *("guided_whitespace_pattern", "truncate_prompt_tokens", "use_beam_search", "length_penalty"),
        *("logits_processors", "skip_special_tokens", "return_tokens_as_token_ids"),
    )
    @classmethod
    def _not_done(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        if value is not None and value not in cls.neutral.get(name, (False, [], {}, "")):
            raise ValueError(NOT_DONE)
        return value

    @model_validator(mode="after")
    def _one_constraint(self) -> "ConstrainedBody":
        """Also for `response_format`, which the bodies have beside these."""
        given = [name for name, _, value in self._constraints() if value not in (None, False)]
        format_ = getattr(self, "response_format", None)
        if format_ is not None and format_.type != "text":
            given.append("response_format")
        if len(given) > 1:
            raise OpenAIError(400, f"{given[0]} and {given[1]} cannot both be given", given[0], "invalid_value")
        if self.structured_outputs is not None and not any(name.startswith("structured") for name in given):
            message = "structured_outputs needs one of json, regex, choice, grammar and json_object"
            raise OpenAIError(400, message, "structured_outputs", "invalid_value")
        return self

    def _constraints(self) -> list[tuple[str, str, Any]]:
        """(field, kind, value) of each field that says what the answer must be."""
        outputs = self.structured_outputs or StructuredOutputs()
        kinds = ("json", "regex", "choice", "grammar")
        under = [
            (f"structured_outputs.{kind}", kind, getattr(outputs, "json_" if kind == "json" else kind))
            for kind in kinds
        ]
        older = [(f"guided_{kind}", kind, getattr(self, f"guided_{kind}")) for kind in kinds]
        return [*under, ("structured_outputs.json_object", "json_object", outputs.json_object), *older]

    @property
    def constraint_field(self) -> str:
        """The field of the JSON schema."""
        return next((name for name, _, value in self._constraints() if value not in (None, False)), "response_format")

    def constraint(self) -> dict[str, Any]:
        """What the answer must be, by the names of SamplingParams."""
        for field, kind, value in self._constraints():
            if value in (None, False):
                continue
            if kind == "json":
                return {"json_schema": value}
            if kind == "json_object":
                return {"json_schema": {}}
            if kind == "regex":
                return {"pattern": Pattern(regex_rule(value), field, {"type": "string", "pattern": value})}
            if kind == "choice":
                return {"pattern": Pattern(choice_rule(value), field, {"enum": value})}
            try:
                return {"pattern": Pattern(grammar_rule(value), field)}
            except ValueError as error:
                raise RequestError(field, f"{field} {error}") from None
        return {}

    @property
    def reading(self) -> int:
        """About how long `constraint` takes, in characters of a text."""
        return sum(READING * len(value) for _, kind, value in self._constraints() if kind == "grammar" and value)


class RefusedInChats(Body):
    """Fields of chats that are refused."""

    functions: Any = None
    """Not supported: use `tools`."""
    function_call: Any = None
    """Not supported: use `tool_choice`."""
    modalities: list[str] | None = None
    """Only text."""
    audio: Any = None
    """Not supported."""
    web_search_options: Any = None
    """Not supported."""
    documents: Any = None
    """Not supported: put them into messages."""
    chat_template: Any = None
    """Not supported: the model's own is used."""
    add_special_tokens: bool | None = None
    """Only false: the chat template has them."""
    echo: bool | None = None
    """Only false."""
    prompt_logprobs: int | None = None
    """Not supported: completions have it."""

    @field_validator(
        *("functions", "function_call", "modalities", "audio", "web_search_options", "documents", "chat_template"),
        *("add_special_tokens", "echo", "prompt_logprobs"),
    )
    @classmethod
    def _not_done_in_chats(cls, value: Any, info: ValidationInfo) -> Any:
        nothing: dict[str | None, Sequence[Any]] = {"modalities": (["text"],), "function_call": ("none",)}
        if value is not None and value not in nothing.get(info.field_name, (False, [], {})):
            other = {"functions": "tools", "function_call": "tool_choice"}.get(info.field_name or "")
            raise ValueError(f"{NOT_DONE}: use {other}" if other else NOT_DONE)
        return value
