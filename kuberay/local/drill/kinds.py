"""The requests of a drill: each way in which an answer could be continued wrongly is one kind."""

from typing import Any

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
TOKENS = 96
"""Maximum length of an answer: some seconds of a tiny model on a laptop, with several beside it."""

_PROMPT = {"prompt": "The days of the week are", "ignore_eos": True}
_MESSAGES = {"messages": [{"role": "user", "content": "What are the days of the week?"}]}
_SCHEMA = {
    "type": "object",
    "properties": {"day": {"type": "string", "minLength": 60, "maxLength": 80}},
    "required": ["day"],
}
_TOOL = {"type": "function", "function": {"name": "note", "parameters": _SCHEMA}}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, _PROMPT | {"temperature": 0}),
    "sampled": (COMPLETIONS, _PROMPT | {"seed": 1, "temperature": 1.0}),
    "penalties": (COMPLETIONS, _PROMPT | {"seed": 2, "presence_penalty": 1.0, "frequency_penalty": 0.5}),
    "log probabilities": (COMPLETIONS, _PROMPT | {"seed": 3, "logprobs": 2}),
    "several": (COMPLETIONS, _PROMPT | {"seed": 4, "n": 3}),
    "stop strings": (COMPLETIONS, _PROMPT | {"seed": 5, "stop": ["zq", "the", "\n\n"]}),
    "schema": (
        CHATS,
        _MESSAGES
        | {"seed": 6, "response_format": {"type": "json_schema", "json_schema": {"name": "day", "schema": _SCHEMA}}},
    ),
    "tool call": (CHATS, _MESSAGES | {"seed": 7, "tools": [_TOOL], "tool_choice": "required"}),
}
"""A route and a body by name. All are answered alike each time: greedy, or with a seed."""
