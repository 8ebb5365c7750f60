"""Pictures with OpenAI's client: python examples/images.py [URL], with `podslice serve-images` running.

It needs OpenAI's client: pip install openai

Saves picture-0.png and picture-1.png. The same seed draws the same picture again.
"""

import base64
import sys
from pathlib import Path

from openai import OpenAI

client = OpenAI(base_url=f"{(sys.argv[1:] or ['http://localhost:8000'])[0]}/v1", api_key="unused")
answer = client.images.generate(
    prompt="a yellow star above a green square on a white background",
    n=2,
    extra_body={"seed": 7, "guidance_scale": 3.0},  # Stable Diffusion's own, in addition to OpenAI's
)
for number, picture in enumerate(answer.data):
    path = Path(f"picture-{number}.png")
    path.write_bytes(base64.b64decode(picture.b64_json))
    print(f"{path}: seed {picture.seed}")
