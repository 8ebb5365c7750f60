"""LangChain's agents and models, over each API of the server that they know.

with_langchain.py URL MODEL    # prints what came of each call, as JSON
"""

import json
import sys
from collections.abc import Callable
from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, ModelResponse, wrap_model_call
from langchain.messages import AIMessageChunk, ToolMessage
from langchain.tools import tool
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

LIMIT = 120  # tokens: enough for the call


class Weather(BaseModel):
    """A forecast."""

    city: Literal["Lyon", "Nice"]
    days: int = Field(ge=1, le=9)


@tool(args_schema=Weather)
def get_weather(city: str, days: int) -> str:
    """Forecast of a city's weather."""
    return f"no rain in {city} for {days} days"


@wrap_model_call
def calls_first(request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> ModelResponse:
    """A random model calls a tool only if it must."""
    called = any(isinstance(message, ToolMessage) for message in request.messages)
    return handler(request if called else request.override(tool_choice="any"))


def turns(messages: list[Any]) -> list[Any]:
    """What an agent's conversation consists of."""
    return [[m.type, [[c["name"], c["args"]] for c in getattr(m, "tool_calls", [])], m.text] for m in messages]


def main(url: str, model: str) -> dict[str, Any]:
    common: dict[str, Any] = {"model": model, "api_key": "none", "temperature": 0, "max_retries": 0, "timeout": 120}
    openai = common | {"base_url": f"{url}/v1", "max_tokens": LIMIT}
    models = {
        "chat completions": ChatOpenAI(**openai),
        "responses": ChatOpenAI(**openai, use_responses_api=True),
        "messages": ChatAnthropic(**common, base_url=url, max_tokens=LIMIT),
    }
    done: dict[str, Any] = {}
    question = {"messages": [{"role": "user", "content": "Rain in Lyon?"}]}
    for name, chat in models.items():
        agent = create_agent(chat, [get_weather], middleware=[calls_first])
        pieces: list[str] = []
        for kind, news in agent.stream(question, stream_mode=["messages", "values"]):
            if kind == "values":
                streamed = news["messages"]
            elif isinstance(news[0], AIMessageChunk):
                pieces.append(news[0].text)
        answer = chat.invoke("Rain in Nice?")
        done[name] = {
            "agent": turns(agent.invoke(question)["messages"]),
            "streamed": turns(streamed),
            "pieces": [piece for piece in pieces if piece],
            "text": answer.text,
            "usage": answer.usage_metadata,
            "json": chat.with_structured_output(Weather, method="json_schema").invoke("Rain?").model_dump(),
        }
    embeddings = OpenAIEmbeddings(model=model, base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False)
    done["embeddings"] = [sum(x * x for x in vector) for vector in embeddings.embed_documents(["Lyon", "Nice"])]
    return done


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
