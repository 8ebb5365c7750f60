"""What a model writes that JSON cannot carry reaches no client: the same answer in every dialect, streamed or not.

Oracles: the official clients' own accumulation of streams, and jiter, a strict parser of JSON.
"""

import json
from typing import Any

import pytest
from pydantic_core import from_json

from apps.llm.chat.formats.hermes import Hermes
from apps.llm.chat.reader import AnswerReader
from apps.llm.http.openai.chat_answers import ChatWriter
from apps.llm.http.openai.completion_answers import choices
from tests.llm.http import test_anthropic_answers as anthropic
from tests.llm.http.responses import test_responses_answers as responses

ARGUMENTS = [
    r'{"a": "\ud83d"}',
    r'{"\ude00": "\ud83d\ude00\ud83d"}',
    '{"a": NaN}',
    '{"a": [Infinity, -Infinity]}',
    '{"a": 1e999, "b": -1E+400}',
    '{"a": ' + "9" * 5000 + "}",
]


def strict(text: str) -> Any:
    return from_json(text, allow_inf_nan=False)


def chat(pieces: list[str], streamed: bool) -> str:
    """The arguments of the one call, by chat completions."""
    generation = anthropic.writer().stream
    writer = ChatWriter("m", generation, choices(1, 1, reader=lambda: AnswerReader(Hermes(), ["f"])), False)
    steps = anthropic.outputs(pieces)
    if not streamed:
        for step in steps:
            writer.take(step)
        (call,) = strict(json.dumps(writer.whole(), allow_nan=False))["choices"][0]["message"]["tool_calls"]
        return call["function"]["arguments"]
    events = b"".join(writer.events(step) for step in steps).decode().split("\n\n")
    deltas = [strict(event.removeprefix("data: "))["choices"][0]["delta"] for event in events if event]
    return "".join(call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ()))


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda text: text[:24])
def test_all_dialects_send_the_same(arguments: str) -> None:
    answer = anthropic.CALL % arguments
    for pieces in ([answer], [answer[at : at + 3] for at in range(0, len(answer), 3)]):
        sent = [chat(pieces, streamed) for streamed in (False, True)]
        found = strict(sent[0])
        assert sent[0] == sent[1]
        for module, field in ((anthropic, "content"), (responses, "output")):
            writer, steps = module.writer(), module.outputs(pieces)
            for step in steps:
                writer.take(step)
            whole = strict(json.dumps(writer.whole(), allow_nan=False, ensure_ascii=False).encode().decode())
            streamed = module.collected(module.streamed(module.writer(), steps))
            for (block,) in (whole[field], streamed[field]):
                assert (block["input"] if field == "content" else strict(block["arguments"])) == found
