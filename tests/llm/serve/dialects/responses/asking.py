"""Requests that the tests of responses share."""

from typing import Any

import openai

from tests.llm.serve.serving import MODEL

QUESTION = "Rain in Lyon?"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "get_weather", "description": "Forecast.", "parameters": WEATHER}
ONE_CALL: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_output_tokens": 200,
    "temperature": 0,  # without a seed, sampling could return anything
    "reasoning": {"effort": "none"},  # a random model may reason forever
}
HEADERS = {"x-api-key": "a-key"}
KEPT = 3
"""Number of responses that the server of `keeping` stores."""


def client_of(url: str, key: str = "a-key") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


def ask(client: openai.OpenAI, input: Any = QUESTION, **body: Any) -> Any:
    body = {"max_output_tokens": 9, "temperature": 0} | body
    return client.responses.create(model=MODEL, input=input, **body)
