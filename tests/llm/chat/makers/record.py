"""Records what the models' makers' own packages make of `conversations` and answers, in makers/recorded.json.

Run where they are installed: they want another NumPy than the tests do, and openai-harmony a file from the internet.

    pip install mistral-common==1.13.* openai-harmony==0.0.8
    python -m tests.llm.chat.makers.record
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mistral_common
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.base import SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from openai_harmony import Author, Conversation, DeveloperContent, HarmonyEncodingName, Message, Role
from openai_harmony import load_harmony_encoding as load_harmony

from tests.llm.chat.makers.conversations import ANSWERS, CONVERSATIONS, TOOLS, Messages

RECORDED = Path(__file__).parent / "recorded.json"


def mistral(version: str) -> Callable[[Messages], str]:
    """Renders with one version of Mistral's format."""
    data = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    tekken = json.loads(data.read_text())
    marks = [mark.value for mark in SpecialTokens]
    marks += [f"<SPECIAL_{i}>" for i in range(len(marks), tekken["config"]["default_num_special_tokens"])]
    tekken["config"]["version"] = version
    tekken["special_tokens"] = [{"rank": i, "token_str": mark, "is_control": True} for i, mark in enumerate(marks)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tekken.json"
        file.write_text(json.dumps(tekken))
        tokenizer = MistralTokenizer.from_file(str(file))

    def render(messages: Messages) -> str:
        taken = [{name: value for name, value in m.items() if name != "reasoning_content"} for m in messages]
        request = ChatCompletionRequest.from_openai(messages=taken, tools=TOOLS)
        return tokenizer.encode_chat_completion(request).text

    return render


HARMONY = load_harmony(HarmonyEncodingName.HARMONY_GPT_OSS)


def harmony(messages: Messages) -> str:
    """A conversation as gpt-oss's format has it: one call at a time, each before its result."""
    said: list[Message] = []
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    for m in messages:
        if m["role"] == "system":
            said.append(
                Message.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_instructions(m["content"]))
            )
        elif m["role"] == "user":
            said.append(Message.from_role_and_content(Role.USER, m["content"]))
        elif m["role"] == "assistant":
            if thought := m.get("reasoning_content"):
                said.append(Message.from_role_and_content(Role.ASSISTANT, thought).with_channel("analysis"))
            if m["content"]:
                channel = "commentary" if m.get("tool_calls") else "final"
                said.append(Message.from_role_and_content(Role.ASSISTANT, m["content"]).with_channel(channel))
            for call in m.get("tool_calls", ()):
                to, result = f"functions.{call['function']['name']}", json.dumps(results[call["id"]])
                called = Message.from_role_and_content(Role.ASSISTANT, call["function"]["arguments"])
                said.append(called.with_channel("commentary").with_recipient(to).with_content_type("json"))
                told = Message.from_author_and_content(Author.new(Role.TOOL, to), result)
                said.append(told.with_channel("commentary").with_recipient("assistant"))
    return HARMONY.decode(HARMONY.render_conversation_for_completion(Conversation.from_messages(said), Role.ASSISTANT))


def harmony_read(answer: str) -> list[list[str | None]]:
    """An answer's messages: channel, recipient and content of each."""
    tokens = HARMONY.encode(answer, allowed_special="all")
    found = HARMONY.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    return [[m.channel, m.recipient, "".join(part.text for part in m.content)] for m in found]


def attempt(render: Callable[[Messages], str], messages: Messages) -> str | None:
    try:
        return render(messages)
    except Exception as error:
        print(f"refused: {str(error)[:100]}")
        return None


if __name__ == "__main__":
    makers = {f"mistral {version}": mistral(version) for version in ("v3", "v7", "v11", "v13")} | {"harmony": harmony}
    recorded: dict[str, Any] = {
        maker: {name: attempt(render, messages) for name, messages in CONVERSATIONS.items()}
        for maker, render in makers.items()
    }
    recorded["answers of gpt-oss"] = {name: harmony_read(answer) for name, answer in ANSWERS.items()}
    RECORDED.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
