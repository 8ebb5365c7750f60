"""LiteLLM, by each of the providers under which it reaches a server like this one.

with_litellm.py URL MODEL    # prints what came of each call, as JSON
"""

import json
import sys
from typing import Any

import litellm

QUESTION = [{"role": "user", "content": "Rain in Lyon?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Lyon", "Nice"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Forecast.", "parameters": WEATHER}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER, "strict": True}}


def told(choice: Any) -> dict[str, Any]:
    """What a choice says, comparable between a whole answer and a stream."""
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or []]
    return {"reason": choice.finish_reason, "text": choice.message.content or "", "calls": calls}


def conversation(**server: Any) -> dict[str, Any]:
    """An answer, a call, and the answer to its result, each whole and streamed."""
    call = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    messages: list[Any] = list(QUESTION)
    steps: dict[str, Any] = {}
    for name, more in {"answer": {}, "call": call, "end": {"tools": [TOOL], "tool_choice": "none"}}.items():
        asked = server | {"messages": messages, "max_tokens": 20} | more
        whole = litellm.completion(**asked)
        chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
        streamed = litellm.stream_chunk_builder(chunks, messages=messages)
        usage = [[one.usage.prompt_tokens, one.usage.completion_tokens] for one in (whole, streamed)]
        steps[name] = {"whole": told(whole.choices[0]), "streamed": told(streamed.choices[0]), "usage": usage}
        message = whole.choices[0].message
        if message.tool_calls:
            messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "no rain"}]
    return steps


def main(url: str, model: str) -> dict[str, Any]:
    litellm.suppress_debug_info = True
    bases = {"openai": f"{url}/v1", "hosted_vllm": f"{url}/v1", "anthropic": url}
    # Greedy throughout: what a random model samples may end before its limit.
    common: dict[str, Any] = {"api_key": "none", "temperature": 0}
    servers = {name: common | {"model": f"{name}/{model}", "api_base": base} for name, base in bases.items()}
    done: dict[str, Any] = {name: conversation(**server) for name, server in servers.items()}
    openai, vllm = servers["openai"], servers["hosted_vllm"]
    strict = litellm.completion(messages=QUESTION, response_format=SCHEMA, max_tokens=100, **openai)
    done["json"] = json.loads(strict.choices[0].message.content)
    text = litellm.text_completion(
        prompt="Rain", max_tokens=5, **(openai | {"model": f"text-completion-openai/{model}"})
    )
    done["completion tokens"] = text.usage.completion_tokens
    done["responses"] = litellm.responses(input="Rain in Lyon?", max_output_tokens=20, **openai).usage.output_tokens
    vectors = litellm.embedding(input=["Lyon", "Nice"], **openai).data
    done["embeddings"] = [sum(x * x for x in vector["embedding"]) for vector in vectors]
    ranked = litellm.rerank(query="Rain", documents=["Sun", "Rain"], **vllm)
    done["ranked"] = [[result["index"], result["relevance_score"]] for result in ranked.results]
    try:
        litellm.completion(messages=QUESTION, **(openai | {"temperature": -1}))
    except litellm.BadRequestError as error:
        done["refusal"] = str(error)
    return done


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
