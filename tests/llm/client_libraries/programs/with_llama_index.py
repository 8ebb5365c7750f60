"""LlamaIndex's agent, which streams, and its models.

with_llama_index.py URL MODEL    # prints what came of each call, as JSON
"""

import asyncio
import json
import sys
from typing import Any, Literal

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Weather(BaseModel):
    """A forecast."""

    city: Literal["Lyon", "Nice"]
    rain: bool


def get_weather(city: Literal["Lyon", "Nice"], rain: bool) -> str:
    """Forecast of a city's weather."""
    return f"no rain in {city}"


async def agent(llm: OpenAILike) -> dict[str, Any]:
    """A random model calls a tool only if it must; then the tool's result goes back, and an answer ends the loop."""
    tools = [FunctionTool.from_defaults(get_weather)]
    handler = FunctionAgent(tools=tools, llm=llm, initial_tool_choice="required").run("Rain in Lyon?")
    calls, pieces = [], []
    async for event in handler.stream_events():
        if isinstance(event, AgentStream):
            pieces.append(event.delta)
        elif isinstance(event, ToolCallResult):
            calls.append([event.tool_name, event.tool_kwargs, str(event.tool_output)])
    return {"calls": calls, "streamed": "".join(pieces), "answer": (await handler).response.content}


def main(url: str, model: str) -> dict[str, Any]:
    server: dict[str, Any] = {"model": model, "api_base": f"{url}/v1", "api_key": "none", "temperature": 0}
    chat = OpenAILike(
        **server,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        context_window=4096,
        max_tokens=120,
        max_retries=0,
        timeout=120,
    )
    question = [ChatMessage(role="user", content="Rain in Nice?")]
    return {
        "agent": asyncio.run(agent(chat)),
        "text": chat.chat(question).message.content,
        "streamed": [part.delta or "" for part in chat.stream_chat(question)],
        "completion": OpenAILike(**server, max_tokens=5).complete("Rain").raw.usage.completion_tokens,
        "json": chat.as_structured_llm(Weather).chat(question).raw.model_dump(),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
