"""OpenAI's own client, streaming: python examples/openai_client.py [URL], with `podslice serve` running.

It needs OpenAI's client: pip install openai
"""

import sys

from openai import OpenAI

client = OpenAI(base_url=f"{(sys.argv[1:] or ['http://localhost:8000'])[0]}/v1", api_key="unused")
model = client.models.list().data[0].id
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "How many days are in a week?"}],
    max_tokens=32,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n({chunk.usage.completion_tokens} tokens, by {model})")
