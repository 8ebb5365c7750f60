"""A tool, two turns, by OpenAI's client: python examples/weather_tool.py [URL], with `podslice serve` running.

It needs OpenAI's client: pip install openai
"""

import json
import sys

from openai import OpenAI

client = OpenAI(base_url=f"{(sys.argv[1:] or ['http://localhost:8000'])[0]}/v1", api_key="unused")
model = client.models.list().data[0].id


def get_weather(city: str) -> str:
    """A real one would ask a weather service about the city."""
    return json.dumps({"temperature": 18, "sky": "sunny"})


city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
function = {"name": "get_weather", "description": "Get the current weather in a city", "parameters": city}
tools = [{"type": "function", "function": function}]
messages = [{"role": "user", "content": "What is the weather in Paris?"}]

answer = client.chat.completions.create(model=model, messages=messages, tools=tools, temperature=0).choices[0].message
messages.append(answer)
for call in answer.tool_calls or []:
    print(f"{call.function.name}({call.function.arguments})")
    result = get_weather(**json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
answer = client.chat.completions.create(model=model, messages=messages, tools=tools, temperature=0).choices[0].message
print(answer.content)
