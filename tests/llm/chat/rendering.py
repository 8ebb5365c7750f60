"""Renders conversations in the templates of the families, as a server does."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from apps.llm.api import RequestError
from apps.llm.chat.conversation import ChatRequest, Conversation, PastCall
from apps.llm.chat.model_format import ModelFormat
from apps.llm.chat.tools import Tool, ToolUse
from tests.llm.chat.templates import RELEASED

DAYS = {"type": "object", "properties": {"days": {"type": "integer", "description": "How many."}}}
ASK = Tool("ask", "tools[0].function", "Asks.", DAYS)
WITHOUT_TOOLS = ("Gemma 2", "Gemma 3")


def renderer(template: str) -> Callable[..., str]:
    def render(messages: Any, tools: Any, fields: Any) -> str:
        try:
            variables = {"bos_token": "<s>", "eos_token": "</s>", **fields}
            options: dict[str, Any] = {"chat_template": template, "add_generation_prompt": True}
            return render_jinja_template([list(messages)], tools, **options, **variables)[0][0]
        except (TemplateError, TypeError) as error:
            raise RequestError("messages", str(error)) from error

    return render


@cache
def model(name: str) -> ModelFormat:
    return ModelFormat.of(RELEASED[name]).on({}, renderer(RELEASED[name]))


def asked(conversation: Conversation, name: str, **fields: Any) -> ChatRequest:
    return ChatRequest(conversation.messages, ToolUse([ASK] if model(name).takes_tools else ()), fields)


def prompt(name: str, conversation: Conversation, **fields: Any) -> str:
    request = asked(conversation, name, **fields)
    model(name).check(request)
    return model(name).rendered(request, renderer(RELEASED[name]))


def call(number: int, **arguments: Any) -> PastCall:
    return PastCall(f"call_{number}", "ask", json.dumps({"days": number, **arguments}))
