"""Prompts are what the models' makers' own packages make of the same conversations, at every turn.

The oracle, in recorded.json: mistral-common 1.13.1 and openai-harmony 0.0.8 (`record` says how).
"""

import json
from pathlib import Path

import pytest

from apps.llm.chat.conversation import PARAGRAPH, ChatRequest
from apps.llm.chat.tools import ToolUse
from apps.llm.http.openai.requests import ChatBody
from tests.llm.chat.makers.conversations import ANSWERS, CONVERSATIONS, TOOLS
from tests.llm.chat.rendering import ASK, model, renderer
from tests.llm.chat.templates import RELEASED
from tests.llm.chat.written import pieces_of, understood

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())


def rendered(template: str, name: str) -> str:
    body = ChatBody.model_validate_json(json.dumps({"messages": CONVERSATIONS[name], "tools": TOOLS}))
    return model(template).rendered(body.request(), renderer(RELEASED[template]))


AFTER_RESULTS = ("a user after a result", "users after results, twice")
MOVED = "a system message after a user's"


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize(
    ("template", "maker"),
    [("Mistral Nemo", "v3"), ("Mistral v7", "v7"), ("Mistral v11", "v11"), ("Mistral v13", "v13")],
)
def test_mistrals_prompts(template: str, maker: str, name: str) -> None:
    """But for what its own package refuses, and a system message that its templates only have first.

    Not always first, though: Nemo's shows it only if a user's message is last, where mistral-common always does.
    """
    found, expected = rendered(template, name), RECORDED[f"mistral {maker}"][name]
    if template == "Mistral Nemo" and name in AFTER_RESULTS:  # which its template refuses without the answer's end
        found = found.replace("[/TOOL_RESULTS]</s>", "[/TOOL_RESULTS]")
    if expected is not None and name != MOVED:
        assert found == expected


ASIDE = ("text beside a call", "text beside calls, twice", "a text before a call")
"""OpenAI's template writes it as reasoning; openai-harmony, as commentary."""
ENDED = ("reasoning in two turns",)
"""OpenAI's template leaves out the reasoning before an earlier answer; openai-harmony, only if an answer is last."""
LATE = ("a late system message", MOVED, "a system message after a result")


@pytest.mark.parametrize("name", [name for name in CONVERSATIONS if name not in (*ASIDE, *ENDED, *LATE)])
def test_gpt_osss_prompts(name: str) -> None:
    """After the system message and the tools, whose words are the template's own."""
    start = "<|start|>user<|message|>"
    found, expected = (text[text.index(start) :] for text in (rendered("gpt-oss", name), RECORDED["harmony"][name]))
    assert found == expected


@pytest.mark.parametrize("name", ANSWERS)
def test_gpt_osss_answers(name: str) -> None:
    turn = model("gpt-oss").turn(ChatRequest([], ToolUse([ASK])), "")
    parts: dict[str, list[str]] = {"text": [], "reasoning": []}
    calls = []
    for channel, recipient, content in RECORDED["answers of gpt-oss"][name]:
        if recipient:
            calls.append((recipient.removeprefix("functions."), content))
        else:
            parts["reasoning" if channel == "analysis" else "text"].append(content)
    for pieces in ([ANSWERS[name]], list(ANSWERS[name])):
        reader = turn.reader()
        assert reader is not None
        found = understood(pieces_of(reader, pieces), framed=True)
        assert (found.text, found.reasoning) == tuple(map(PARAGRAPH.join, parts.values())) and found.calls == calls
