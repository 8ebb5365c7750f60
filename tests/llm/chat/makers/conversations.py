"""Conversations as clients of chat completions send them, for the models' makers' own packages to render."""

from typing import Any

Messages = list[dict[str, Any]]

PARAMETERS = {"type": "object", "properties": {"days": {"type": "integer", "description": "How many."}}}
TOOLS = [{"type": "function", "function": {"name": "ask", "description": "Asks.", "parameters": PARAMETERS}}]


def says(role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def calls(*numbers: int, text: str | None = None, **more: Any) -> dict[str, Any]:
    called = [
        {"id": f"abcdefg{n:02}", "type": "function", "function": {"name": "ask", "arguments": f'{{"days": {n}}}'}}
        for n in numbers
    ]
    return {"role": "assistant", "content": text, "tool_calls": called, **more}


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"abcdefg{number:02}", "content": text}


ASKS = says("user", "Rain?")
ONE = [ASKS, calls(1), result(1, "yes")]
TWO = [ASKS, calls(1, 2), result(1, "yes"), result(2, '{"mm": 3}')]
THANKS = says("user", "Thanks. And 天气?")

BOTH = [*ONE, says("assistant", "Yes."), THANKS, calls(2, 3), result(2, "a"), result(3, "b")]
LOOKS = [ASKS, calls(1, text="I look."), result(1, "yes")]
THINKS = [ASKS, says("assistant", "No.", reasoning_content="Hm."), THANKS]

CONVERSATIONS: dict[str, Messages] = {
    "one question": [ASKS],
    "a system message": [says("system", "Be brief."), ASKS],
    "two turns": [says("system", "Be brief."), ASKS, says("assistant", "No."), THANKS],
    "users in a row": [ASKS, says("user", "Please?"), says("assistant", "No."), THANKS],
    "assistants in a row": [ASKS, says("assistant", "Hm."), says("assistant", "No."), THANKS],
    "a call": ONE,
    "a call after a system message": [says("system", "Be brief."), *ONE],
    "a call in a second turn": [says("system", "Be brief."), ASKS, says("assistant", "No."), THANKS, *ONE[1:]],
    "parallel calls": TWO,
    "an answer after a call": [*ONE, says("assistant", "It does."), THANKS],
    "a call after a call": [*ONE, calls(2), result(2, "no")],
    "calls in two turns": [*TWO, says("assistant", "It does."), THANKS, calls(3), result(3, "[1, 2]")],
    "three turns": [*BOTH, says("assistant", "So."), says("user", "More.")],
    "a user after a result": [*ONE, says("user", "Stop.")],
    "users after results, twice": [*TWO, says("user", "Stop."), calls(3), result(3, "c"), says("user", "Go.")],
    "text beside a call": LOOKS,
    "text beside calls, twice": [*LOOKS, calls(2, text="Again."), result(2, "no")],
    "a text before a call": [ASKS, says("assistant", "Well."), *ONE[1:]],
    "reasoning": [ASKS, calls(1, reasoning_content="Hm."), result(1, "yes")],
    "reasoning in two turns": [*THINKS, calls(1, reasoning_content="So."), result(1, "yes")],
    "a late system message": [ASKS, says("assistant", "No."), says("system", "Be kind."), THANKS],
    "a system message after a user's": [ASKS, says("system", "Be kind."), says("assistant", "No."), THANKS],
    "a system message after a result": [*ONE, says("system", "Be kind.")],
}

_CALL = '<|channel|>commentary to=functions.ask <|constrain|>json<|message|>{"days": 2}<|call|>'
_THINKS = "<|channel|>analysis<|message|>Hm. 天气?<|end|>"
_SAYS = "<|channel|>final<|message|>It rains.<|return|>"
ANSWERS = {
    "an answer": _SAYS,
    "an answer after reasoning": f"{_THINKS}<|start|>assistant{_SAYS}",
    "a call": _CALL,
    "a call after reasoning": f"{_THINKS}<|start|>assistant{_CALL}",
    "a call after an announcement": f"{_THINKS}<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    f"<|start|>assistant{_CALL}",
    "the tool before the channel": ' to=functions.ask<|channel|>commentary json<|message|>{"days": 2}<|call|>',
    "no type": '<|channel|>commentary to=functions.ask<|message|>{"days": 2}<|call|>',
    "reasoning twice": f"{_THINKS}<|start|>assistant{_THINKS}<|start|>assistant{_SAYS}",
    "a cut answer": f"{_THINKS}<|start|>assistant<|channel|>final<|message|>It ra",
    "a cut thought": "<|channel|>analysis<|message|>Hm. Let",
}
"""Answers of gpt-oss, after the `<|start|>assistant` of its prompt."""
