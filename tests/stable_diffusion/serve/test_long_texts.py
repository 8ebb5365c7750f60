"""Long texts cost a server of pictures little: their length is looked at before anything else about them."""

import base64
import io
import random
import re

import httpx
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from apps.stable_diffusion.pictures import MAX_PROMPT
from apps.stable_diffusion.prompt_syntax import check_syntax

WEIGHTED = "(red:1.5) " * (MAX_PROMPT // 5)


@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
def test_a_prompt_is_measured_before_it_is_read(studio, field):
    body = {"prompt": "a", field: WEIGHTED}
    reply = httpx.post(f"{studio.url}/sdapi/v1/txt2img", json=body, timeout=60)
    assert reply.status_code == 400 and reply.json()["detail"].startswith(f"{field} has {len(WEIGHTED)} characters")
    short = httpx.post(f"{studio.url}/sdapi/v1/txt2img", json={**body, field: WEIGHTED[:20]}, timeout=60)
    assert short.status_code == 200


def test_the_first_weight_is_found_as_a_search_of_every_part_finds_it():
    """The oracle looks at every number, and from each back for its parenthesis, which takes the square of the time."""

    def oracle(text: str) -> str | None:
        for number in re.finditer(r":\s*[+-]?[.\d]+\s*\)", text):
            if (begins := text.rfind("(", 0, number.start())) >= 0:
                return text[begins : number.end()]
        return None

    draw = random.Random(5)
    for _ in range(2000):
        text = "".join(draw.choice("(:1) a") for _ in range(draw.randrange(12)))
        if (part := oracle(text)) is not None:
            with pytest.raises(ValueError, match=re.escape(repr(part))):
                check_syntax("prompt", text, emphasis=False)


def test_a_few_bytes_of_a_picture_are_not_many_texts(studio):
    """PNG packs its texts: a megabyte of one letter is a thousand bytes."""
    info = PngInfo()
    for number in range(8):
        info.add_text("parameters" if not number else f"text {number}", "a\n" * 2**18, zip=True)
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG", pnginfo=info)
    packed = file.getvalue()
    assert len(packed) < 20_000
    image = base64.b64encode(packed).decode()
    reply = httpx.post(f"{studio.url}/sdapi/v1/png-info", json={"image": image}, timeout=60)
    assert reply.status_code == 400 and "characters" in reply.json()["detail"] and len(reply.content) < 1000
